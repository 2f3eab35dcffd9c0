package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
)

// "Each that does, while this process grants starts, makes the net of those after it looser, and a while without any makes
// it tighter again."
func TestNets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n nets
		tight := throttle.FallbackDelay(time.Minute)
		if got := n.of(time.Minute); got != tight {
			t.Errorf("nobody has come by itself, and a net is %s, want %s", got, tight)
		}
		last := tight
		for range 30 {
			n.came()
			got := n.of(time.Minute)
			if got <= last {
				t.Errorf("another has come, and a net is %s, after %s", got, last)
			}
			last = got
		}
		if last < 2*tight || last > 3*tight {
			t.Errorf("30 have come, and a net is %s", last)
		}
		for range 1000 {
			n.came()
		}
		most := mostSlip * tight
		if got := n.of(time.Minute); got != most {
			t.Errorf("many have come, and a net is %s, want %s", got, most)
		}
		if got := n.of(throttle.Never); got != throttle.FallbackDelay(throttle.Never) {
			t.Errorf("where no clock tells it is %s", got)
		}
		<-time.After(slipHalves)
		if got := n.of(time.Minute) - tight; got != (most-tight)/2 {
			t.Errorf("half a minute later it is looser by %s, want half of %s", got, most-tight)
		}
		<-time.After(20 * slipHalves)
		if got := n.of(time.Minute) - tight; got > time.Second {
			t.Errorf("ten minutes later it is looser by %s", got)
		}
	})
}
