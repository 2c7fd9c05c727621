<?php
// Sleeps deep in a stack, and says what that is: `php stacks.php FILE`.
//
// FILE gets a line for each frame, innermost first: name, file and line, with tabs; PHP's own functions have neither file nor
// line. What a file has outside of functions is called as the file.

function say(): void
{
    $lines = ["sleep\t\t0"];
    $calls = debug_backtrace(DEBUG_BACKTRACE_IGNORE_ARGS);
    foreach ($calls as $at => $call) {
        // Where a call stands its caller is; PHP's own functions are nowhere.
        $file = $call['file'] ?? '';
        $lines[] = name($calls[$at + 1] ?? null, $file) . "\t$file\t" . ($call['line'] ?? 0);
    }
    file_put_contents($GLOBALS['argv'][1], implode("\n", $lines) . "\n");
}

function name(?array $function, string $file): string
{
    if ($function === null || in_array($function['function'], ['eval', 'require'])) {
        return substr(strrchr($file, '/'), 1);
    }
    // What stands behind the name of a class without one is where it was declared.
    $class = explode("\0", $function['class'] ?? '')[0];
    return ($class === '' ? '' : "$class::") . $function['function'];
}

function pause(): void
{
    say(); sleep(100000);
}

// A name with characters that are not ASCII.
function généré(int $depth): int
{
    return $depth > 0 ? généré($depth - 1) : (new class { use Looks; })->look();
}

trait Looks
{
    public function look(): int
    {
        usort($this->numbers, ['Outer', 'compare']);
        return 0;
    }

    private array $numbers = [3, 1];
}

class Outer
{
    public static function compare(int $one, int $other): int
    {
        foreach (outermost() as $number);
        return $one <=> $other;
    }

    public function __toString(): string
    {
        return $this->nobody(
            1,
        );
    }

    public function __call(string $name, array $arguments): string
    {
        $closure = function (int $number) use ($name) {
            $inner = fn (int $depth): string => require $GLOBALS['far'];
            return $inner(
                $number,
            );
        };
        return array_map($closure, $arguments)[0];
    }

    public function __destruct()
    {
        pause();
    }
}

// Generators that have another one run in their place.
function outermost(): Generator
{
    yield from middle();
}

function middle(): Generator
{
    yield 0;
    yield from innermost();
}

function innermost(): Generator
{
    yield (string)new Outer();
}

// Lines that are far apart, and a file with a name that is not ASCII.
$far = __DIR__ . '/遠い.php';
file_put_contents($far, "<?php\nnamespace Far;\n" . str_repeat("\n", 5000) . <<<'TEXT'
    function far(int $depth): string
    {
        return $depth > 0 ? far($depth - 1) : eval('

            function evaluated(): string { $outer = new \Outer(); unset($outer); return ""; }
            return \call_user_func_array(fn (string $name) => $name(), ["evaluated"]);
        ');
    }
    return far(2);
    TEXT);

$fiber = new Fiber(function () {
    généré(2);
});
$fiber->start();
