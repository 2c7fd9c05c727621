/** Nothing but calls: the most that a flag can cost which changes how functions are entered. */
public class Fib {
    static long fib(int n) {
        return n < 2 ? n : fib(n - 1) + fib(n - 2);
    }

    public static void main(String[] arguments) {
        long sum = 0;
        for (int i = 0; i < Integer.parseInt(arguments[0]); i++) {
            sum += fib(25 + i % 2);
        }
        System.out.println(sum);
    }
}
