package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
)

// A process yields to others while they come first, and grants their tasks itself, for a while, when nobody did.
func TestYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soonest, next = 10 * time.Millisecond, 300 * time.Millisecond
		owns := func(name string) bool { return name == "mine" }
		overdue := []throttle.Granted{{Wait: -time.Millisecond}}
		ahead := []throttle.Granted{{Wait: 20 * time.Millisecond}}
		var y yield
		expect := func(when string, want time.Duration) {
			t.Helper()
			if got := y.due(soonest, next); got != want {
				t.Errorf("%s: looks in %s, want %s", when, got, want)
			}
		}
		expect("at first", soonest)
		y.granted([]string{"theirs", "mine"}, owns)
		expect("some are its own", soonest)
		y.granted([]string{"theirs"}, owns)
		expect("none are its own", next+yieldsFor)
		y.granted(nil, owns)
		expect("none were granted", next+yieldsFor)
		y.looked(ahead, false)
		expect("others came first", next+yieldsFor)
		y.looked(overdue, true)
		expect("it was kicked, so that others had no time", next+yieldsFor)
		y.looked(overdue, false)
		expect("nobody came first", soonest)
		y.looked(overdue, false)
		<-time.After(aloneFor)
		expect("a while later", next+yieldsFor)
	})
}
