package redistest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rounds of the generator in compute take a processor ordinaryTime where nothing else runs.
	rounds       = 10_000_000
	ordinaryTime = 20 * time.Millisecond
	// leastBound is the shortest bound of a wait: conditions end waits, and a bound only ends a test that failed.
	leastBound = time.Minute
)

// slowness is how many hundredths of ordinaryTime this machine takes as the program begins.
var slowness = measureSpeed()

// Stretch returns a bound for what takes d at most on an ordinary machine that does nothing else. It is a minute at
// least, and longer by as much as the machine is slower when the test program begins: it has other work, or slower
// processors. It may initialize a package's variable.
func Stretch(d time.Duration) time.Duration {
	return max(d, leastBound) * max(slowness, 100) / 100
}

// measureSpeed has all processors compute at once, as the tests of a package do, for some 20 ms.
func measureSpeed() time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	var sum atomic.Uint64
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() { sum.Add(compute()) })
	}
	all.Wait()
	return 100 * time.Since(began) / ordinaryTime
}

// compute draws numbers from a xorshift generator, which neither the compiler nor the processor can shorten.
func compute() uint64 {
	x := uint64(88172645463325252)
	for range rounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}
