// 20,000 compiled methods: a hundred of each of 200 hidden classes, called in turns.
//
// java -XX:TieredStopAtLevel=1 -XX:-Inline Many.java [SECONDS [CLASSES]]
//
// It is ready once nothing is compiled any more.
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import javax.tools.ToolProvider;

public class Many {
    static final int METHODS = 100;

    static byte[] compiled() throws Exception {
        StringBuilder source = new StringBuilder("class Hundred {\n");
        StringBuilder calls = new StringBuilder();
        for (int i = 0; i < METHODS; i++) {
            source.append("static int leaf").append(i).append("(int n) { int x = ").append(i + 1)
                .append("; for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; } return x; }\n");
            calls.append("sum ^= leaf").append(i).append("(n);\n");
        }
        source.append("static int all(int n) { int sum = 0;\n").append(calls).append("return sum; }\n}\n");
        Path folder = Files.createTempDirectory("many");
        Path file = folder.resolve("Hundred.java"), made = folder.resolve("Hundred.class");
        Files.writeString(file, source);
        int failed = ToolProvider.getSystemJavaCompiler().run(null, null, null, file.toString());
        byte[] bytes = failed == 0 ? Files.readAllBytes(made) : null;
        for (Path path : new Path[] {made, file, folder}) { Files.deleteIfExists(path); }
        return bytes;
    }

    static MethodHandle[] classes(int count) throws Exception {
        byte[] bytes = compiled();
        MethodHandle[] all = new MethodHandle[count];
        for (int i = 0; i < count; i++) {
            MethodHandles.Lookup its = MethodHandles.lookup().defineHiddenClass(bytes, true);
            all[i] = its.findStatic(its.lookupClass(), "all", MethodType.methodType(int.class, int.class));
        }
        return all;
    }

    static int round(MethodHandle[] all, int n) throws Throwable {
        int sum = 0;
        for (MethodHandle one : all) { sum ^= (int) one.invokeExact(n); }
        return sum;
    }

    static long spentCompiling() { return ManagementFactory.getCompilationMXBean().getTotalCompilationTime(); }

    public static void main(String[] arguments) throws Throwable {
        double seconds = arguments.length > 0 ? Double.parseDouble(arguments[0]) : 4;
        MethodHandle[] all = classes(arguments.length > 1 ? Integer.parseInt(arguments[1]) : 200);
        int sum = 0;
        for (int i = 0; i < 400; i++) { sum ^= round(all, 10); }
        for (long before = -1; before != spentCompiling(); Thread.sleep(1000)) { before = spentCompiling(); }
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        long end = System.nanoTime() + (long) (1e9 * seconds);
        while (System.nanoTime() < end) { sum ^= round(all, 400); }
        if (sum == 42) { System.out.println(sum); }
    }
}
