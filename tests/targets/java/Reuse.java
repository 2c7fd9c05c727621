// Different code at the same addresses: a class is loaded anew again and again, compiled, run on a thread of its own that has the
// generation's number in its name, and unloaded. Beside that runs what stays:
// outer -> middle -> leafHot (75 %), outer -> sideCold -> leafCold (25 %)
//
// java -XX:-SegmentedCodeCache -XX:ReservedCodeCacheSize=4m Reuse.java [SECONDS [MILLISECONDS]]
//
// Once there is a file `settle` in its working directory no further class comes, and it makes the file `settled`.
import java.io.InputStream;
import java.lang.reflect.Constructor;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.IntUnaryOperator;

public class Reuse {
    static class Loader extends ClassLoader {
        Loader() { super(Reuse.class.getClassLoader()); }

        Class<?> define(byte[] bytes) { return defineClass(null, bytes, 0, bytes.length); }
    }

    // The class file of generation 0, with another number everywhere.
    static byte[] numbered(byte[] original, int generation) {
        byte[] bytes = original.clone(), number = String.format("%06d", generation).getBytes();
        for (int i = 0; i + 6 <= bytes.length; i++) {
            if (bytes[i] == 'X' && new String(bytes, i, 6).equals("XXXXXX")) { System.arraycopy(number, 0, bytes, i, 6); }
        }
        return bytes;
    }

    static int leafHot(int n) {
        int x = 88172645;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
        return x;
    }

    static int leafCold(int n) {
        int x = 12345678;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
        return x;
    }

    static int middle(int n) { int r = leafHot(n * 3); return r + 1; }

    static int sideCold(int n) { int r = leafCold(n); return r + 1; }

    static int outer(int n) { int r = middle(n) + sideCold(n); return r; }

    static int stay(long end) {
        int sum = 0, noise = 1;
        while (System.nanoTime() < end) {
            noise = (noise * 1103515245 + 12345) & 0x7fffffff;
            sum ^= outer(2000 + (noise >> 8) % 36001);
        }
        return sum;
    }

    static int drive(IntUnaryOperator operator, long milliseconds) {
        long end = System.nanoTime() + milliseconds * 1000000;
        int sum = 0, noise = 1;
        while (System.nanoTime() < end) {
            noise = (noise * 1103515245 + 12345) & 0x7fffffff;
            sum ^= operator.applyAsInt(200 + (noise >> 8) % 3600);
        }
        return sum;
    }

    static void run(byte[] original, int generation, long milliseconds) throws Exception {
        Class<?> loaded = new Loader().define(numbered(original, generation));
        Constructor<?> constructor = loaded.getDeclaredConstructor();
        constructor.setAccessible(true);
        IntUnaryOperator operator = (IntUnaryOperator) constructor.newInstance();
        Thread thread = new Thread(() -> drive(operator, milliseconds), String.format("run%06d", generation));
        thread.start();
        thread.join();
    }

    public static void main(String[] arguments) throws Exception {
        byte[] original;
        try (InputStream in = Reuse.class.getClassLoader().getResourceAsStream("GenerationXXXXXX.class")) {
            original = in.readAllBytes();
        }
        long end = System.nanoTime() + (long) (1e9 * (arguments.length > 0 ? Double.parseDouble(arguments[0]) : 4));
        long milliseconds = arguments.length > 1 ? Long.parseLong(arguments[1]) : 300;
        Thread stays = new Thread(() -> stay(end), "stays");
        stays.start();
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        Path settle = Path.of("settle");
        for (int generation = 1; System.nanoTime() < end && !Files.exists(settle); generation++) {
            run(original, generation, milliseconds);
            System.gc();
        }
        Files.createFile(Path.of("settled"));
        stays.join();
    }
}

class GenerationXXXXXX implements IntUnaryOperator {
    static int leafXXXXXX(int n) {
        int x = 88172645;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
        return x;
    }

    static int middleXXXXXX(int n) { int r = leafXXXXXX(n * 3); return r + 1; }

    static int outerXXXXXX(int n) { int r = middleXXXXXX(n) + leafXXXXXX(n); return r; }

    public int applyAsInt(int n) { return outerXXXXXX(n) + 1; }
}
