<?php
// As Composer's: App\Http\Router is in src/Http/Router.php.

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    $prefix = 'App\\';
    if (strncmp($class, $prefix, strlen($prefix)) === 0) {
        require __DIR__ . '/../src/' . strtr(substr($class, strlen($prefix)), '\\', '/') . '.php';
    }
});
