package wallclock

import (
	"fmt"
	"testing"
)

// "Recent schedules are cached", of the same zone alone, and no more than maxRecent of them. Not parallel: it looks at the cache.
func TestParseKeeps(t *testing.T) {
	const expr = "3 4 5 * *"
	berlin, utc, window := MustParse(expr, "Europe/Berlin"), MustParse(expr, ""), MustParseWindow(expr, "Europe/Berlin")
	if MustParse(expr, "Europe/Berlin") != berlin || utc == berlin || MustParseWindow(expr, "Europe/Berlin") != window {
		t.Error("a schedule is read again, or that of another zone taken for it")
	}
	if text := fmt.Sprint(berlin.Cron(), "|", window.Zone(), "|", window, "|", utc); text != "3 4 5 * *|Europe/Berlin|3 4 5 * * in Europe/Berlin|3 4 5 * * in UTC" {
		t.Error(text)
	}
	for i := range 1440 {
		MustParse(fmt.Sprintf("%d %d 9 9 *", i%60, i/60), "")
		if n := len(recent.schedules); n > maxRecent {
			t.Fatalf("%d are kept", n)
		}
	}
}
