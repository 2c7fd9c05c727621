<?php

declare(strict_types=1);

namespace App\Catalog;

final class Items
{
    /** @return \Generator<int> */
    public function rows(int $length): \Generator
    {
        for ($row = 0; $row < 3; $row++) {
            $value = $this->leafHot($length);
            yield $value;
        }
    }

    /** @return \Generator<int> */
    public function found(int $length): \Generator
    {
        yield from array_map(function (int $length): int {
            $value = $this->leafCold($length);
            return $value;
        }, [$length]);
    }

    private function leafHot(int $n): int
    {
        $x = 88172645;
        for ($i = 0; $i < $n; $i++) {
            $x ^= ($x << 13) & 0xffffffff;
            $x ^= $x >> 17;
            $x ^= ($x << 5) & 0xffffffff;
        }
        return $x;
    }

    private function leafCold(int $n): int
    {
        $x = 12345678;
        for ($i = 0; $i < $n; $i++) {
            $x ^= ($x << 13) & 0xffffffff;
            $x ^= $x >> 17;
            $x ^= ($x << 5) & 0xffffffff;
        }
        return $x;
    }
}
