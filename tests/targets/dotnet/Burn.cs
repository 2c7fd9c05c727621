// Outer -> Middle -> LeafHot (75 %), Outer -> SideCold -> LeafCold (25 %)
//
//   mcs Burn.cs && mono --jitmap Burn.exe [SECONDS]
//
// Inlining is switched off so that every function keeps a frame of its own.
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;

public static class Burn
{
    [MethodImpl(MethodImplOptions.NoInlining)]
    static int LeafHot(int n)
    {
        int x = 88172645;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= (int)((uint)x >> 17); x ^= x << 5; }
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int LeafCold(int n)
    {
        int x = 12345678;
        for (int i = 0; i < n; i++) { x ^= x << 13; x ^= (int)((uint)x >> 17); x ^= x << 5; }
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Middle(int n) { int r = LeafHot(n * 3); return r + 1; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int SideCold(int n) { int r = LeafCold(n); return r + 1; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Outer(int n) { return Middle(n) + SideCold(n); }

    public static void Main(string[] arguments)
    {
        double seconds = arguments.Length > 0 ? double.Parse(arguments[0]) : 4;
        Console.WriteLine("ready pid=" + Process.GetCurrentProcess().Id);
        Console.Out.Flush();
        var clock = Stopwatch.StartNew();
        int calls = 0, sum = 0, noise = 1;
        while (clock.Elapsed.TotalSeconds < seconds)
        {
            // A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
            noise = unchecked(noise * 1103515245 + 12345) & 0x7fffffff;
            sum ^= Outer(2000 + (noise >> 8) % 36001);
            calls++;
        }
        Console.WriteLine("calls " + calls + " sum " + sum);
    }
}
