<?php

declare(strict_types=1);

namespace App\View;

final class View
{
    private string $folder;

    public function __construct(string $folder)
    {
        $this->folder = $folder;
    }

    /** @param array<string, mixed> $data */
    public function render(string $template, array $data): string
    {
        extract($data);
        ob_start();
        include $this->folder . '/' . $template;
        return (string)ob_get_clean();
    }
}
