package wallclock

import (
	"fmt"
	"testing"
)

// "Schedules that were read lately are returned again", of the same zone alone. Not parallel: TestCacheIsBounded would
// evict them.
func TestParseKeeps(t *testing.T) {
	const expr = "3 4 5 * *"
	berlin, utc := MustParse(expr, "Europe/Berlin"), MustParse(expr, "")
	if MustParse(expr, "Europe/Berlin") != berlin || utc == berlin {
		t.Error("a schedule is read again, or that of another zone taken for it")
	}
	window := MustParseWindow(expr, "Europe/Berlin")
	if MustParseWindow(expr, "Europe/Berlin") != window {
		t.Error("a window is read again")
	}
	for _, s := range []interface {
		Cron() string
		Zone() string
	}{berlin, window} {
		if s.Cron() != expr || s.Zone() != "Europe/Berlin" || fmt.Sprint(s) != "3 4 5 * * in Europe/Berlin" {
			t.Errorf("%s in %s, %v", s.Cron(), s.Zone(), s)
		}
	}
	if utc.Zone() != "UTC" {
		t.Errorf("no zone is %q", utc.Zone())
	}
}

// However many are read, no more than maxRecent are kept.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	for i := range 1440 {
		MustParse(fmt.Sprintf("%d %d 9 9 *", i%60, i/60), "")
		recent.mu.Lock()
		if len(recent.schedules) > maxRecent {
			t.Errorf("%d are kept", len(recent.schedules))
		}
		recent.mu.Unlock()
	}
}
