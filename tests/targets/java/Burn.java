// outer -> middle -> leafHot (75 %), outer -> sideCold -> leafCold (25 %)
//
// java -XX:+PreserveFramePointer -XX:CompileCommand=dontinline,Burn::* Burn.java [SECONDS]
//
// and while it runs: jcmd PID Compiler.perfmap, which writes /tmp/perf-PID.map. Inlining is switched off so that every
// function keeps a frame of its own.
public class Burn {
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

    static int outer(int n) { return middle(n) + sideCold(n); }

    public static void main(String[] arguments) {
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        long end = System.nanoTime() + (long) (1e9 * (arguments.length > 0 ? Double.parseDouble(arguments[0]) : 4));
        int calls = 0, sum = 0, noise = 1;
        while (System.nanoTime() < end) {
            // A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
            noise = (noise * 1103515245 + 12345) & 0x7fffffff;
            sum ^= outer(2000 + (noise >> 8) % 36001);
            calls++;
        }
        System.out.println("calls " + calls + " sum " + sum);
    }
}
