package network

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// bound is how long a test waits for what must happen.
var bound = redistest.Stretch(2 * time.Minute)

// "All of it holds with Redis 20 ms away as beside it": nothing is lost, and nothing over
// a limit at the API, also where the way takes a quarter more or less each time.
func TestFarFromRedis(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		for _, jitter := range []time.Duration{0, delay / 4} {
			t.Run(fmt.Sprint(delay, " each way, jitter ", jitter), func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				for _, m := range s.workers {
					m.net.Delay(delay, jitter)
				}
				const n = 200
				s.enqueue(n)
				s.start(s.workers...)
				s.perfect(s.until(n))
			})
		}
	}
}
