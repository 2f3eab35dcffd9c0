package usage

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// Runs that did not succeed count at their scope and at those above it, of several processes together, in each
// slot that Read reports, and for the day.
func TestEnded(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, rdb redis.UniversalClient, prefix string) {
		together := inOneSlot()
		for _, r := range []*Recorder{newRecorder(t, rdb, prefix, "shop"), newRecorder(t, rdb, prefix, "billing")} {
			together(r)
			r.Spent("p/acme", By{Queue: "q"}, 2)
			r.Ended("p/acme", Ends{Failed: 1})
			r.Ended("p/acme", Ends{Refused: 1})
			r.Ended("p/other", Ends{Refused: 2}) // its run was counted before
			r.Ended("p//", Ends{Failed: 1})
			flush(t, r)
		}
		for _, since := range []time.Duration{time.Hour, day, 31 * day} {
			if got := read(t, rdb, prefix, "p", since); got.Ends != (Ends{2, 6}) || got.All != (Sum{4, 2}) {
				t.Errorf("p in %s: %+v", since, got)
			}
		}
		if got := read(t, rdb, prefix, "p/acme", time.Hour); got.Ends != (Ends{2, 2}) || len(got.Spenders) != 2 {
			t.Errorf("p/acme: %+v", got)
		}
		got, err := Today(t.Context(), rdb, Config{Prefix: prefix}, []string{"p", "none", "p/other"}, time.Now())
		if want := []Runs{{2, Ends{2, 6}}, {}, {0, Ends{0, 4}}}; err != nil || !slices.Equal(got, want) {
			t.Errorf("today %+v, %v; want %+v", got, err, want)
		}
	})
	rdb := redistest.Client(t)
	if got, err := Today(t.Context(), rdb, Config{}, nil, time.Now()); got != nil || err != nil {
		t.Errorf("of no scope: %+v, %v", got, err)
	}
	if _, err := Today(t.Context(), rdb, Config{}, []string{"p//x"}, time.Now()); err == nil {
		t.Error("of what is no scope")
	}
}
