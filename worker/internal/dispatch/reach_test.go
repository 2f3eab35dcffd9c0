package dispatch

import (
	"math/rand/v2"
	"testing"
	"time"
)

// "Beside Redis they are 20 and 80 ms, and never less; they grow to a second at most": and they follow what was measured,
// with its deviation, soon.
func TestReach(t *testing.T) {
	t.Parallel()
	r := newReach()
	if r.lead() != gatedLead || r.beyond() != 0 || r.from() != 0 || r.window() != spread {
		t.Errorf("nothing measured: lead %v, beyond %v, from %v, window %v", r.lead(), r.beyond(), r.from(), r.window())
	}
	note := func(d *delayMeter, times int, mean, jitter time.Duration) {
		for range times {
			d.note(mean - jitter + rand.N(2*jitter+1))
		}
	}
	note(&r.hand, 50, time.Millisecond, time.Millisecond/2)
	note(&r.pickup, 50, time.Millisecond, time.Millisecond/2)
	note(&r.dispatch, 50, time.Millisecond, time.Millisecond/2)
	if r.lead() != gatedLead || r.from() != 0 || r.window() != spread {
		t.Errorf("beside Redis: lead %v, from %v, window %v", r.lead(), r.from(), r.window())
	}
	note(&r.hand, 50, 100*time.Millisecond, 25*time.Millisecond)
	note(&r.dispatch, 50, 100*time.Millisecond, 25*time.Millisecond)
	if lead := r.lead(); lead < 110*time.Millisecond || lead > 220*time.Millisecond {
		t.Errorf("100 ms away, with jitter of a quarter: lead %v", lead)
	}
	if from := r.from(); from < 100*time.Millisecond || from > 200*time.Millisecond {
		t.Errorf("no start is granted for a moment at which its task cannot be there: from %v", from)
	}
	if window := r.window(); window < r.beyond()+100*time.Millisecond {
		t.Errorf("a call grants what starts in %v, and takes 100 ms", window)
	}
	note(&r.hand, 50, time.Minute, 0)
	if r.lead() != mostReach || r.from() != mostReach {
		t.Errorf("a minute away: lead %v, from %v", r.lead(), r.from())
	}
}
