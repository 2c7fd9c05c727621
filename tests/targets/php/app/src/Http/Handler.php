<?php

declare(strict_types=1);

namespace App\Http;

interface Handler
{
    public function handle(Request $request): string;
}
