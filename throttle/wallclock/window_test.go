package wallclock_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/wallclock"
)

// Each minute of weeks around the shifts of real zones, against a second opinion.
func TestWindowsMinuteByMinute(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	zones := []string{
		"UTC", "America/New_York", "Europe/Berlin", "Europe/Dublin", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu",
		"Africa/Casablanca", "Pacific/Apia", "America/Santiago", "Asia/Tehran", "America/Los_Angeles",
	}
	exprs := []string{
		"* 8-19 * * 1-5", "* 20-23,0-7 * * *", "*/15 1-3 * * *", "0-29 * * * *", "* * 1-7 * *", "* * 13 * 5", "* * * 3,10 *",
		"30-59 2 * * sun", "* 0 * * 6", "10-19,40-49 */6 * * *", "* * */2 * *", "59 23 31 * *", "* 1-2 25-31 3,10,11 0", "* 1-2 L * *",
	}
	for range 60 {
		expr, zone := exprs[random.IntN(len(exprs))], zones[random.IntN(len(zones))]
		loc, err := time.LoadLocation(zone)
		must(t, err)
		from := time.Date(2005+random.IntN(25), time.Month(1+random.IntN(12)), 1+random.IntN(28), random.IntN(24), random.IntN(60), 0, 0, time.UTC)
		if _, shift := from.In(loc).ZoneBounds(); !shift.IsZero() && random.IntN(4) > 0 {
			from = shift.Add(-time.Duration(random.IntN(72)) * time.Hour)
		}
		to := from.Add(14 * 24 * time.Hour)
		held, want := everyChange(expr, loc, from, to)
		w := wallclock.MustParseWindow(expr, zone)
		if w.Holds(from) != held {
			t.Fatalf("seed %d: %q in %s at %s: holds %t", seed, expr, zone, from, !held)
		}
		var got []time.Time
		for at := w.Changes(from); !at.IsZero() && !at.After(to); at = w.Changes(at) {
			got = append(got, at)
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("seed %d: %q in %s from %s: got %v, want %v", seed, expr, zone, from, got, want)
		}
	}
}

// "An expression that no minute matches, or every minute, is refused."
func TestParseWindowFaults(t *testing.T) {
	t.Parallel()
	const write = `write five fields, such as "* 8-19 * * 1-5"`
	for expr, want := range map[string]string{
		"* * * * *":             `cron "* * * * *": matches every minute; remove it`,
		"0-59 0-23 * * 0-6":     `cron "0-59 0-23 * * 0-6": matches every minute; remove it`,
		"* * 1-31 * 1":          `cron "* * 1-31 * 1": matches every minute; remove it`,
		"* * 30 2 *":            `cron "* * 30 2 *": no month that it names has such a day; correct the day of month or the month`,
		"@daily":                `cron "@daily": stands for single moments; ` + write,
		"":                      `cron "": is empty; ` + write,
		"* 8-19":                `cron "* 8-19": has 2 of 5 fields: minute, hour, day of month, month, day of week; ` + write,
		"* 24 * * *":            `cron "* 24 * * *": hour "24" is not within 0 to 23`,
		"CRON_TZ=UTC * 8 * * *": `cron "CRON_TZ=UTC * 8 * * *": the zone has a field of its own; remove CRON_TZ=UTC`,
	} {
		if _, err := wallclock.ParseWindow(expr, "UTC"); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", expr, err, want)
		}
	}
	if _, err := wallclock.ParseWindow("* 8 * * *", "Mars"); err == nil {
		t.Error("a zone of Mars")
	}
	if at := wallclock.MustParseWindow("* * 29 2 *", "UTC").Changes(time.Date(2097, 1, 1, 0, 0, 0, 0, time.UTC)); at.Year() != 2104 {
		t.Errorf("the next leap day after 2096 begins at %s", at)
	}
}
