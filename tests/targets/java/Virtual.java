// On virtual threads that give up their carrier all the time:
// outer -> middle -> leafHot (75 %), outer -> sideCold -> leafCold (25 %)
//
// java Virtual.java [SECONDS [THREADS]]
//
// A thread that is continued has its innermost frames on the carrier's stack, the others stay in the heap.
public class Virtual {
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

    static int nap(int n) { Thread.yield(); return n; }

    static int middle(int n) { int r = nap(n) + leafHot(n * 3); return r + 1; }

    static int sideCold(int n) { int r = leafCold(n); return r + 1; }

    static int outer(int n) { int r = middle(n) + sideCold(n); return r; }

    static void body(long end) {
        int sum = 0, noise = 1;
        while (System.nanoTime() < end) {
            noise = (noise * 1103515245 + 12345) & 0x7fffffff;
            sum ^= outer(2000 + (noise >> 8) % 36001);
        }
        if (sum == 42) { System.out.println(sum); }
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        long end = System.nanoTime() + (long) (1e9 * (arguments.length > 0 ? Double.parseDouble(arguments[0]) : 4));
        Thread[] threads = new Thread[arguments.length > 1 ? Integer.parseInt(arguments[1]) : 4];
        for (int i = 0; i < threads.length; i++) { threads[i] = Thread.startVirtualThread(() -> body(end)); }
        for (Thread thread : threads) { thread.join(); }
    }
}
