<?php

declare(strict_types=1);

namespace App\Http;

interface Middleware
{
    public function process(Request $request, callable $next): string;
}
