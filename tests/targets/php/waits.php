<?php
// Waits in a method that a function has called: what `jitprof dump` is to show.
function holds(): void {
    while (true) {
        sleep(600);
    }
}

class Keeper {
    public function keeps(): void {
        holds();
    }
}

echo "ready pid=", getmypid(), "\n";
(new Keeper())->keeps();
