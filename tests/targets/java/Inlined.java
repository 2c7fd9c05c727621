// What HotSpot inlines, on known lines: both -> small -> hot (75 %), both -> other -> cold (25 %), of which small and other are
// inlined into both; spin -> first (75 %), spin -> second (25 %), loops that are inlined into spin.
//
// java -XX:CompileCommand=dontinline,Inlined::{both,spin,hot,cold} -XX:CompileCommand=inline,Inlined::{first,second}
//      Inlined.java [SECONDS]
//
// The test finds the lines by what stands behind them.
public class Inlined {
    static int hot(int n) {
        int x = 88172645;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
        return x;
    }

    static int cold(int n) {
        int x = 12345678;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
        return x;
    }

    static int small(int n) {
        int r = hot(n * 3); // small calls hot
        return r + 1;
    }

    static int other(int n) {
        int r = cold(n); // other calls cold
        return r + 1;
    }

    static int both(int n) {
        int r = small(n); // both calls small
        return r
                + other(n); // both calls other
    }

    static int first(int n) {
        int x = 362436069;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; } // first loops
        return x;
    }

    static int second(int n) {
        int x = 521288629;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; } // second loops
        return x;
    }

    static int spin(int n) {
        int r = first(n * 3);
        return r + second(n);
    }

    // Until all of it is compiled: what is compiled alone, before its caller, is inlined into nothing.
    static int warmUp() {
        long end = System.nanoTime() + (long) 1e9;
        int sum = 0;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 100; i++) sum ^= both(200) ^ spin(200);
        }
        return sum;
    }

    public static void main(String[] arguments) {
        int sum = warmUp(), noise = 1;
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        long end = System.nanoTime() + (long) (1e9 * (arguments.length > 0 ? Double.parseDouble(arguments[0]) : 4));
        while (System.nanoTime() < end) {
            // At random: calls of similar length fall into step with a profiler's clock.
            noise = (noise * 1103515245 + 12345) & 0x7fffffff;
            int n = 2000 + (noise >> 8) % 36001;
            sum ^= both(n) ^ spin(n); // main calls
        }
        System.out.println("sum " + sum);
    }
}
