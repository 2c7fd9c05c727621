// outer -> middle -> find (75 %), outer -> side -> find (25 %); find spends its time in String.indexOf, which C2 replaces by
// code that moves the stack pointer by different amounts.
//
// java -XX:CompileCommand=dontinline,Search::* Search.java [SECONDS]
public class Search {
    static final String[] TEXTS = new String[256];
    static final String[] WORDS = new String[256];

    static {
        for (int i = 0; i < TEXTS.length; i++) {
            TEXTS[i] = "abcdefghijk".substring(0, 6 + i % 5) + (char) ('a' + i % 26);
            WORDS[i] = "" + (char) ('a' + i * 7 % 26) + (char) ('a' + i * 3 % 26);
        }
    }

    static int find(int n, int from) {
        int sum = 0;
        for (int i = 0; i < n; i++) { sum += TEXTS[(i + from) & 255].indexOf(WORDS[(i * 5) & 255]); }
        return sum;
    }

    static int middle(int n) { int r = find(3 * n, 1); return r + 1; }
    static int side(int n) { int r = find(n, 2); return r + 1; }
    static int outer(int n) { int a = middle(n); int b = side(n); return a + b; }

    public static void main(String[] args) {
        double seconds = args.length > 0 ? Double.parseDouble(args[0]) : 4;
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        long end = System.nanoTime() + (long) (seconds * 1e9);
        int sum = 0;
        int noise = 1;
        while (System.nanoTime() < end) {
            noise = (noise * 1103515245 + 12345) & 0x7fffffff;
            sum += outer(200 + (noise >> 8) % 3600);
        }
        System.out.println(sum);
    }
}
