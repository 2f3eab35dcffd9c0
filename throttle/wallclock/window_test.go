package wallclock_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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

// everyMinute returns the runs of an expression after from and up to to, by looking at each minute. It is a second opinion: it
// shares no code with the package nor with robfig/cron, and is as slow as it is simple. It takes five fields, and shifts of whole
// minutes.
func everyMinute(expr string, loc *time.Location, from, to time.Time) []time.Time {
	matches := minutes(expr)
	anyHour := strings.Fields(expr)[1][0] == '*'
	var runs []time.Time
	reached := int64(-1 << 62) // the latest minute that the clocks have ever shown
	for at := from.Add(-48 * time.Hour).Truncate(time.Minute); !at.After(to); at = at.Add(time.Minute) {
		_, offset := at.In(loc).Zone()
		now := (at.Unix() + int64(offset)) / 60
		due := false
		if anyHour {
			due = matches(now)
		} else {
			for m := max(reached+1, now-3000); m <= now && !due; m++ {
				due = matches(m)
			}
		}
		reached = max(reached, now)
		if due && at.After(from) {
			runs = append(runs, at)
		}
	}
	return runs
}

// minutes returns whether an expression matches a minute, counted since 1970, of a clock that never shifts.
func minutes(expr string) func(m int64) bool {
	fields := strings.Fields(expr)
	days := strings.Split(fields[2], ",")
	others := slices.DeleteFunc(slices.Clone(days), func(item string) bool { return item == "L" })
	var shown [5]map[int]bool
	for i, size := range []int{60, 24, 32, 13, 7} {
		if i != 2 || len(others) > 0 {
			shown[i] = values(strings.TrimSuffix(fields[i], ",L"), i, size)
		}
	}
	anyDay := slices.ContainsFunc(append(strings.Split(fields[2], ","), strings.Split(fields[4], ",")...), func(item string) bool {
		return item == "*" || item == "*/1" // as robfig/cron has it: another step is a restriction
	})
	return func(m int64) bool {
		if !shown[0][int(m%60)] || !shown[1][int(m/60%24)] {
			return false // before a date is looked for, which takes long
		}
		w := time.Unix(60*m, 0).UTC()
		dom, dow := shown[2][w.Day()] || len(others) < len(days) && w.AddDate(0, 0, 1).Day() == 1, shown[4][int(w.Weekday())]
		day := dom || dow
		if anyDay {
			day = dom && dow
		}
		return day && shown[3][int(w.Month())]
	}
}

// everyChange returns when the minutes that match begin and end, after from and up to to, as everyMinute does.
func everyChange(expr string, loc *time.Location, from, to time.Time) (held bool, changes []time.Time) {
	matches := minutes(expr)
	at := from.Truncate(time.Minute)
	for first := true; !at.After(to); at, first = at.Add(time.Minute), false {
		_, offset := at.In(loc).Zone()
		holds := matches((at.Unix() + int64(offset)) / 60)
		if first {
			held = holds
		} else if holds != (held != (len(changes)%2 == 1)) {
			changes = append(changes, at)
		}
	}
	return held, changes
}

// values returns what a field of an expression names.
func values(field string, which, size int) map[int]bool {
	least := 0
	if which == 2 || which == 3 {
		least = 1
	}
	words := map[string]int{"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
	number := func(text string) int {
		if n, ok := words[text]; ok {
			return n
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return n
	}
	named := map[int]bool{}
	for _, item := range strings.Split(field, ",") {
		span, step, stepped := strings.Cut(item, "/")
		low, high, ranged := strings.Cut(span, "-")
		first, last, by := least, size-1, 1
		if low != "*" {
			first = number(low)
			if !stepped {
				last = first
			}
		}
		if ranged {
			last = number(high)
		}
		if stepped {
			by = number(step)
		}
		for v := first; v <= last; v += by {
			named[v] = true
		}
	}
	return named
}
