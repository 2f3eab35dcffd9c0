package schedules_test

import (
	"testing"
	"time"

	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// The file is taken, its tasks can run under the limits beside it, and its runs are those that its comments speak of.
func TestExample(t *testing.T) {
	t.Parallel()
	file, err := schedule.Load("schedules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	policy, err := limitsyaml.Load("limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Check(policy); err != nil {
		t.Error(err)
	}
	want := map[string]string{
		"nightly-report": "2026-03-09T06:00:00-07:00",
		"refresh":        "2026-03-07T00:15:00Z",
		"invoices":       "2026-04-01T02:30:00+02:00",
	}
	from := time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC) // a Saturday, but in Los Angeles; clocks shift there on Sunday
	for _, s := range file.Schedules {
		if got := s.Next(from).Format(time.RFC3339); got != want[s.Name] {
			t.Errorf("%s: %s, want %s", s.Name, got, want[s.Name])
		}
	}
	if len(file.Schedules) != len(want) {
		t.Errorf("%d schedules, want %d", len(file.Schedules), len(want))
	}
}
