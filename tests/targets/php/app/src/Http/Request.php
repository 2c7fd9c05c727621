<?php

declare(strict_types=1);

namespace App\Http;

final class Request
{
    public string $path;
    public int $length;

    public function __construct(string $path, int $length)
    {
        $this->path = $path;
        $this->length = $length;
    }
}
