<?php
// outer -> middle -> leaf_hot (75 %), outer -> side_cold -> leaf_cold (25 %)
//
// php -d opcache.enable=1 -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M -d opcache.jit=1205 \
//     -d opcache.jit_debug=0x20 burn.php [SECONDS]
//
// jit 1205 compiles functions, 1254 traces. jit_debug 0x20 writes /tmp/jit-PID.dump and /tmp/perf-PID.map, 0x10 the
// map alone.

function leaf_hot($n)
{
    $x = 88172645;
    for ($i = 0; $i < $n; $i++) {
        $x ^= ($x << 13) & 0xffffffff;
        $x ^= $x >> 17;
        $x ^= ($x << 5) & 0xffffffff;
    }
    return $x;
}

function leaf_cold($n)
{
    $x = 12345678;
    for ($i = 0; $i < $n; $i++) {
        $x ^= ($x << 13) & 0xffffffff;
        $x ^= $x >> 17;
        $x ^= ($x << 5) & 0xffffffff;
    }
    return $x;
}

function middle($n)
{
    $r = leaf_hot($n * 3);
    return $r + 1;
}

function side_cold($n)
{
    $r = leaf_cold($n);
    return $r + 1;
}

function outer($n)
{
    $a = middle($n);
    $b = side_cold($n);
    return $a ^ $b;
}

echo 'ready pid=', getmypid(), "\n";
$end = microtime(true) + (float)($argv[1] ?? 4);
$calls = 0;
$sum = 0;
$noise = 1;
while (microtime(true) < $end) {
    // A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
    $noise = ($noise * 1103515245 + 12345) & 0x7fffffff;
    $sum ^= outer(2000 + ($noise >> 8) % 36001);
    $calls++;
}
echo "calls $calls sum $sum\n";
