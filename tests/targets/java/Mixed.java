// All that makes a JVM's stacks hard, for as long as it is told: methods that are inlined, deep recursion, virtual and
// interface calls, lambdas and streams, exceptions, reflection, allocation that the collector moves, native methods,
// synchronised blocks, and code that is given up because what it relied on does not hold any more.
//
// java [-XX:+UseZGC ...] Mixed.java [SECONDS]
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

public class Mixed {
    interface Shape { double area(int n); }

    static final class Circle implements Shape { public double area(int n) { return Math.sin(n) * n * 3.14; } }

    static final class Square implements Shape { public double area(int n) { return Math.sqrt(n) * n; } }

    static final class Line implements Shape { public double area(int n) { return n % 7; } }

    static int recursion(int depth, int n) { return depth == 0 ? work(n) : recursion(depth - 1, n + depth) + 1; }

    static int work(int n) {
        int x = n | 1;
        for (int i = 0; i < 2000; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
        return x;
    }

    static double shapes(Shape[] all, int n) {
        double sum = 0;
        for (int i = 0; i < 20_000; i++) { sum += all[(i + n) % all.length].area(i); }
        return sum;
    }

    static int lambdas(int n) {
        IntUnaryOperator step = x -> work(x) & 0xff;
        return IntStream.range(0, 50).map(step).map(x -> x + n).filter(x -> x % 3 != 0).sum();
    }

    static int exceptions(int n) {
        int caught = 0;
        for (int i = 0; i < 200; i++) {
            try { thrower(i, n); } catch (IllegalStateException e) { caught += e.getMessage().length(); }
        }
        return caught;
    }

    static void thrower(int i, int n) { if ((i + n) % 3 == 0) { throw new IllegalStateException("at " + i); } }

    static int allocation(int n) {
        Map<String, List<Integer>> map = new HashMap<>();
        for (int i = 0; i < 2000; i++) { map.computeIfAbsent("key" + i % 100, k -> new ArrayList<>()).add(i + n); }
        return map.values().stream().mapToInt(List::size).sum();
    }

    static int sorting(int n) {
        Integer[] numbers = new Integer[3000];
        for (int i = 0; i < numbers.length; i++) { numbers[i] = work(i) ^ n; }
        Arrays.sort(numbers, (a, b) -> Integer.compare(a & 0xffff, b & 0xffff));
        byte[] bytes = new byte[200_000];
        System.arraycopy(bytes, 0, bytes, 100, 150_000);
        return numbers[0] + new String(bytes).hashCode();
    }

    static synchronized int locked(int n) { return work(n) + work(n + 1); }

    static int reflection(int n) throws Exception {
        return (int) Mixed.class.getDeclaredMethod("locked", int.class).invoke(null, n);
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        double seconds = arguments.length > 0 ? Double.parseDouble(arguments[0]) : 4;
        long begin = System.nanoTime(), end = begin + (long) (1e9 * seconds);
        double sum = 0;
        for (int n = 0; System.nanoTime() < end; n++) {
            // New classes come in as it runs: what was compiled for fewer of them is given up.
            Shape[] all = System.nanoTime() - begin < 3e9 ? new Shape[] {new Circle(), new Square()}
                    : new Shape[] {new Circle(), new Square(), new Line()};
            sum += recursion(200, n) + shapes(all, n) + lambdas(n) + exceptions(n) + allocation(n) + sorting(n) + reflection(n);
        }
        System.out.println("sum " + sum);
    }
}
