package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// A start under a calendar is expected where its period begins: on the first of a month, and at midnight also on days of 23 and 25 hours.
// Joined, denied, inspected and forecast alike.
func TestCalendarStarts(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	noError(t, err)
	for name, test := range map[string]struct {
		cron, now string
		wants     []time.Time
	}{
		"months": {"0 0 1 * *", "2025-12-15T12:00:00Z", []time.Time{
			time.Date(2026, 1, 1, 0, 0, 0, 0, berlin), time.Date(2026, 2, 1, 0, 0, 0, 0, berlin), time.Date(2026, 3, 1, 0, 0, 0, 0, berlin),
			time.Date(2026, 4, 1, 0, 0, 0, 0, berlin), time.Date(2026, 5, 1, 0, 0, 0, 0, berlin), time.Date(2026, 6, 1, 0, 0, 0, 0, berlin),
		}},
		"a day of 23 hours": {"0 0 * * *", "2026-03-26T12:00:00Z", []time.Time{
			time.Date(2026, 3, 27, 0, 0, 0, 0, berlin), time.Date(2026, 3, 28, 0, 0, 0, 0, berlin), time.Date(2026, 3, 29, 0, 0, 0, 0, berlin),
			time.Date(2026, 3, 30, 0, 0, 0, 0, berlin), time.Date(2026, 3, 31, 0, 0, 0, 0, berlin),
		}},
		"a day of 25 hours": {"0 0 * * *", "2026-10-24T12:00:00Z", []time.Time{
			time.Date(2026, 10, 25, 0, 0, 0, 0, berlin), time.Date(2026, 10, 26, 0, 0, 0, 0, berlin), time.Date(2026, 10, 27, 0, 0, 0, 0, berlin),
			time.Date(2026, 10, 28, 0, 0, 0, 0, berlin),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rules := policyOf(t, policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse(test.cron, "Europe/Berlin")})
			onBoth(t, Config{}, rules, func(b *bench) { b.startsAt(berlin, test.now, test.wants) })
		})
	}
}

// startsAt has one start now, and others expected at moments.
func (b *bench) startsAt(zone *time.Location, now string, wants []time.Time) {
	t := b.t
	t.Helper()
	b.atTime(now)
	if d := b.decide(Request{Scope: "p", ID: NewID()}); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	forecast, err := b.Forecast(t.Context(), "p")
	noError(t, err)
	at := time.UnixMicro(b.now.Load())
	for i, want := range wants {
		id := fmt.Sprint("t", i)
		if got := at.Add(forecast.Rules[0].Period(int64(i + 1))); !got.Equal(want) {
			t.Errorf("period %d begins at %s, want %s", i+1, got.In(zone), want)
		}
		var in time.Duration
		if i%2 == 0 {
			in = b.decide(Request{Scope: "p", Turn: Turn{WaiterID: id}, ID: NewID()}).Position.Expected
		} else {
			joined, err := b.Waitlist().Join(t.Context(), []Waiter{{Scope: "p", ID: id, Cost: 1}}, 0, 0)
			if err != nil || !joined[0].Waits {
				t.Fatalf("%+v, %v", joined, err)
			}
			in = joined[0].Expected
		}
		if got := at.Add(in); !got.Equal(want) {
			t.Errorf("task %d is told to start at %s, want %s", i, got.In(zone), want)
		}
		seen := b.ticket("p", id, 1)
		if got := seen.At.Add(seen.Expected.In); !got.Equal(want) {
			t.Errorf("task %d is inspected to start at %s, want %s", i, got.In(zone), want)
		}
	}
}
