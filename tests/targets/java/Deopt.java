// A caller that is deoptimised while its callee runs: outer -> middle -> inner -> spin -> leaf, of which middle and inner are
// inlined into outer. There is one Shape when that is compiled, so that it calls sides() without asking for the class; when
// another one is loaded, the frame of outer is no longer valid, and spin returns to the runtime's handler.
//
// java -XX:CompileCommand=dontinline,Deopt::{outer,spin,leaf} -XX:CompileCommand=inline,Deopt::{middle,inner} Deopt.java [SECONDS]
public class Deopt {
    abstract static class Shape { abstract int sides(); }
    static class Square extends Shape { int sides() { return 4; } }
    static class Circle extends Shape { int sides() { return 0; } }

    static Shape shape = new Square();
    static volatile long end;

    static int leaf(int x) {
        for (int i = 0; i < 2000; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
        return x;
    }

    static int spin(int x) {
        do { x = leaf(x); } while (System.nanoTime() < end);
        return x;
    }

    static int inner(int x) {
        int r = spin(x);
        return r + shape.sides();
    }

    static int middle(int x) {
        int r = inner(x);
        return r + 1;
    }

    static int outer(int x) {
        int r = middle(x);
        return r + shape.sides();
    }

    public static void main(String[] arguments) throws Exception {
        int sum = 1;
        // Until all of it is compiled.
        for (long warm = System.nanoTime() + (long) 1.5e9; System.nanoTime() < warm;) {
            end = System.nanoTime() + 20_000;
            sum ^= outer(sum);
        }
        end = System.nanoTime() + (long) (1e9 * (arguments.length > 0 ? Double.parseDouble(arguments[0]) : 4));
        int begin = sum;
        Thread thread = new Thread(() -> System.out.println("sum " + outer(begin)));
        thread.start();
        Thread.sleep(500);
        // By name, for the verifier would load it with this class.
        Class.forName("Deopt$Circle").getDeclaredConstructor().newInstance();
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        thread.join();
    }
}
