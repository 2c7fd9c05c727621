import java.util.concurrent.locks.LockSupport;
/** Threads that wait, in frames of each kind: compiled and inlined, interpreted, native. */
public class Wait {
    interface Step { void run(int depth); }
    static class Nothing implements Step { public void run(int depth) { } }
    static class Yield implements Step { public void run(int depth) { Thread.yield(); } }
    static class Park implements Step {
        public void run(int depth) {
            while (true) LockSupport.park();
        }
    }
    static class Sleep implements Step {
        public void run(int depth) {
            try {
                Thread.sleep(3_600_000);
            } catch (InterruptedException e) { throw new RuntimeException(e); }
        }
    }
    static class Lock implements Step {
        public synchronized void run(int depth) {
            try {
                wait();
            } catch (InterruptedException e) { throw new RuntimeException(e); }
        }
    }
    static long sum;
    static void outer(Step step, int depth) {
        sum += depth;
        inlined(step,
            depth);
        sum -= depth;
    }
    static void inlined(Step step, int depth) {
        twice(step, depth);
    }
    static void twice(Step step, int depth) {
        step.run(depth);
        sum ^= depth;
    }
    static void recursive(Step step, int depth) {
        if (depth == 0) outer(step, 0);
        else
            recursive(step, depth - 1);
        sum++;
    }
    /** What has one subclass only is called without asking for its class, till there is another one. */
    abstract static class Only {
        abstract void go(Step step, int depth);
    }
    static class First extends Only {
        void go(Step step, int depth) {
            step.run(depth);
            sum += 3;
        }
    }
    static class Second extends Only {
        void go(Step step, int depth) { sum--; }
    }
    static void only(Only only, Step step, int depth) {
        sum--;
        only.go(step, depth);
        sum++;
    }
    static void start(Step step, int depth) {
        Thread thread = new Thread(() -> recursive(step, depth));
        thread.setDaemon(true);
        thread.start();
    }
    public static void main(String[] args) throws Exception {
        int rounds = args.length > 0 ? Integer.parseInt(args[0]) : 200_000;
        Step[] quick = { new Nothing(), new Yield(), new Nothing() {} };
        start(new Park(), 3);
        Thread.sleep(100);
        for (int i = 0; i < rounds; i++) recursive(quick[i % 3], i % 5);
        start(new Sleep(), 0);
        start(new Lock(), 30);
        start(new Park(), 7);
        for (int i = 0; i < 12; i++) start(new Park(), i);
        Only first = new First();
        for (int i = 0; i < rounds; i++) only(first, quick[i % 3], i);
        Thread.sleep(500);
        Thread thread = new Thread(() -> only(first, new Park(), 1));
        thread.setDaemon(true);
        thread.start();
        Thread.sleep(1000);
        // By name, for the verifier would load it with this class.
        only((Only) Class.forName("Wait$Second").getDeclaredConstructor().newInstance(), quick[0], 1);
        Thread.sleep(500);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
