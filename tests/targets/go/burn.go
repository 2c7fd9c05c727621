// outer -> middle -> leafHot (75 %), outer -> sideCold -> leafCold (25 %)
//
//	go build -o burn burn.go && ./burn [SECONDS]
//
// Besides, a goroutine runs worker -> workerMiddle -> workerLeaf.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

//go:noinline
func leafHot(n uint32) uint32 { return burn(88172645, n) }

//go:noinline
func leafCold(n uint32) uint32 { return burn(12345678, n) }

//go:noinline
func workerLeaf(n uint32) uint32 { return burn(1, n) }

// Inlined into the leaves.
func burn(x, n uint32) uint32 {
	for ; n > 0; n-- {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
	}
	return x
}

//go:noinline
func middle(n uint32) uint32 { return leafHot(n*3) + 1 }

//go:noinline
func sideCold(n uint32) uint32 { return leafCold(n) + 1 }

//go:noinline
func outer(n uint32) uint32 { return middle(n) ^ sideCold(n) }

//go:noinline
func workerMiddle(n uint32) uint32 { return workerLeaf(n) + 1 }

//go:noinline
func worker(end time.Time) {
	for time.Now().Before(end) {
		sink ^= workerMiddle(100000)
		time.Sleep(time.Millisecond)
	}
}

var sink, result uint32

//go:noinline
func loop(end time.Time) {
	noise := uint32(1)
	for time.Now().Before(end) {
		// A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's
		// clock.
		noise = noise*1103515245 + 12345
		result ^= outer(2000 + (noise>>8)%36001)
	}
}

func main() {
	seconds := 4
	if len(os.Args) > 1 {
		seconds, _ = strconv.Atoi(os.Args[1])
	}
	fmt.Printf("ready pid=%d\n", os.Getpid())
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	go worker(end)
	loop(end)
}
