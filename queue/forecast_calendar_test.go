package queue_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// A batch under a monthly limit starts on the first of each month by the clocks of its zone, summer and winter.
func TestForecastMonths(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	limits, err := limitsyaml.Parse("limits.yaml", []byte(
		`limits: {p: {rules: [{name: month, algorithm: calendar, limit: 2, resets: "0 0 1 * *", timezone: Europe/Berlin}]}}`))
	must(t, err)
	rdb := redistest.NewServer(t).Client(t)
	limiter, err := throttle.New(rdb, limits, throttle.Config{})
	must(t, err)
	for range 2 { // this month's
		if d, err := limiter.Allow(t.Context(), "p"); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	var entries []queue.Entry
	for i := range 30 {
		entries = append(entries, queue.Entry{Task: queue.Task{Type: "work", Scope: "p", ID: fmt.Sprint(i)}})
	}
	var starts []time.Time
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	now := time.Now().In(berlin)
	if _, err := client.Forecast(t.Context(), slices.Values(entries), func(r queue.Result) { starts = append(starts, r.Start) }); err != nil {
		t.Fatal(err)
	}
	for i, got := range starts {
		want := time.Date(now.Year(), now.Month()+1+time.Month(i/2), 1, 0, 0, 0, 0, berlin)
		if off := got.Sub(want).Abs(); off > time.Minute {
			t.Errorf("task %d is told to start at %s, want %s", i, got.In(berlin), want)
		}
	}
}
