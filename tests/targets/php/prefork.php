<?php
// Two workers that run burn.php, as php-fpm's do: the master makes them before anything is compiled, all of them share
// the memory for generated code, and write to the dump of their master. The master sleeps.
//
// php -d opcache.enable=1 -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M -d opcache.jit=1205 \
//     -d opcache.jit_debug=0x20 prefork.php [SECONDS]

for ($worker = 0; $worker < 2; $worker++) {
    if (pcntl_fork() === 0) {
        ob_start();
        require __DIR__ . '/burn.php';
        exit(0);
    }
}
echo 'ready pid=', getmypid(), "\n";
while (pcntl_wait($status) > 0);
