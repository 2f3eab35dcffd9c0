package wallclock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/wallclock"
)

func TestRunsAroundShifts(t *testing.T) {
	t.Parallel()
	const layout = "2006-01-02 15:04 -0700"
	for name, c := range map[string]struct {
		zone, expr, from string // from: on the zone's clock, before anything shifts
		want             string // the next runs, divided by ", "
	}{
		"plain": {"UTC", "0 6 * * 1-5", "2026-11-20 05:00",
			"2026-11-20 06:00 +0000, 2026-11-23 06:00 +0000, 2026-11-24 06:00 +0000"},
		"a skipped time is due once when the gap ends": {"America/Los_Angeles", "30 2 * * *", "2026-03-07 00:00",
			"2026-03-07 02:30 -0800, 2026-03-08 03:00 -0700, 2026-03-09 02:30 -0700"},
		"a time that comes twice is due the first time": {"America/Los_Angeles", "30 1 * * *", "2026-11-01 00:00",
			"2026-11-01 01:30 -0700, 2026-11-02 01:30 -0800"},
		"a starred hour counts real hours, twice where they come twice": {"America/Los_Angeles", "0 * * * *", "2026-11-01 00:30",
			"2026-11-01 01:00 -0700, 2026-11-01 01:00 -0800, 2026-11-01 02:00 -0800"},
		"Apia went without a day": {"Pacific/Apia", "0 12 * * *", "2011-12-28 13:00",
			"2011-12-29 12:00 -1000, 2011-12-31 00:00 +1400, 2011-12-31 12:00 +1400"},
		"leap days over a century without one": {"Europe/Berlin", "0 0 29 2 *", "2096-03-01 00:00",
			"2104-02-29 00:00 +0100, 2108-02-29 00:00 +0100"},
		"months without a 31st": {"UTC", "0 0 31 * *", "2026-01-31 00:00",
			"2026-03-31 00:00 +0000, 2026-05-31 00:00 +0000, 2026-07-31 00:00 +0000, 2026-08-31 00:00 +0000"},
		"either day matches": {"UTC", "0 0 13 * 5", "2026-11-12 00:00",
			"2026-11-13 00:00 +0000, 2026-11-20 00:00 +0000, 2026-11-27 00:00 +0000"},
		"words": {"UTC", "0 0 * JAN Mon-wed", "2026-11-12 00:00",
			"2027-01-04 00:00 +0000, 2027-01-05 00:00 +0000, 2027-01-06 00:00 +0000, 2027-01-11 00:00 +0000"},
		"far years have the rules of the last known": {"Europe/Berlin", "30 2 * 3 0", "2150-03-28 12:00",
			"2150-03-29 03:00 +0200, 2151-03-07 02:30 +0100"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := wallclock.MustParse(c.expr, c.zone)
			from, err := time.ParseInLocation("2006-01-02 15:04", c.from, s.Location())
			must(t, err)
			want := strings.Split(c.want, ", ")
			last := s.Prev(from)
			for i, text := range want {
				next := s.Next(from)
				if got := next.Format(layout); got != text {
					t.Fatalf("run %d: got %s, want %s", i, got, text)
				}
				if prev := s.Prev(next); !prev.Equal(next) {
					t.Errorf("Prev at run %s is %s", text, prev.Format(layout))
				}
				if prev := s.Prev(next.Add(-1)); !prev.Equal(last) {
					t.Errorf("Prev just before run %s is %s, want %s", text, prev.Format(layout), last.Format(layout))
				}
				from, last = next, next
			}
		})
	}
}

// oracleZones are zones and years in which their clocks do something odd.
var oracleZones = map[string][]int{
	"UTC": {2024}, "America/Los_Angeles": {2026, 2045}, "Europe/Berlin": {2026}, "Asia/Kathmandu": {1985, 2026},
	"Australia/Lord_Howe": {1981, 1985, 2026}, "Africa/Cairo": {2014, 2026}, "Asia/Beirut": {2023, 2026},
	"America/St_Johns": {1988, 2010, 2026}, "Pacific/Apia": {2011, 2012}, "Pacific/Kiritimati": {1994, 1995},
	"Pacific/Kwajalein": {1993}, "Antarctica/Troll": {2026}, "America/Sao_Paulo": {2018}, "Africa/Casablanca": {2026},
	"Europe/Dublin": {2026}, "America/Nuuk": {2023, 2024}, "Asia/Pyongyang": {2015, 2018}, "Antarctica/Casey": {2010, 2018},
	"America/Caracas": {2007, 2016}, "Pacific/Chatham": {2026}, "Asia/Gaza": {2026},
}

var oracleExprs = []string{
	"*/15 * * * *", "7 * * * *", "0 */2 * * *", "0 */6 * * *", "59 */23 * * *", "0 *,5 * * *",
	"*/10 0-23 * * *", "30 2 * * *", "30 1 * * *", "0 0 * * *", "*/20 0,1,2,3 * * *", "45 1-23/2 * * *", "0 12 30 * *",
	"0 0 31 * *", "0 0 L * *", "30 2 1,L 2-4 *", "0 12 L * 0", "15 3 * * 0", "0 0 1 * *", "1 0 29 2 *", "30 0 1,15 * 1", "59 23 * 3,10,11 sat",
}

// TestAgreesWithEveryMinute holds Next and Prev against an oracle that looks at every minute of the hours around each shift.
func TestAgreesWithEveryMinute(t *testing.T) {
	t.Parallel()
	for zone, years := range oracleZones {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			loc, err := time.LoadLocation(zone)
			must(t, err)
			for _, year := range years {
				for _, shift := range shiftsOf(loc, year) {
					from, to := shift.Add(-30*time.Hour), shift.Add(30*time.Hour)
					for _, expr := range oracleExprs {
						agree(t, wallclock.MustParse(expr, zone), expr, from, to)
					}
				}
			}
		})
	}
}

func agree(t *testing.T, s *wallclock.Schedule, expr string, from, to time.Time) {
	t.Helper()
	want := everyMinute(expr, s.Location(), from, to)
	var got []time.Time
	for at := s.Next(from); !at.IsZero() && !at.After(to); at = s.Next(at) {
		got = append(got, at)
	}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("%q in %s from %s to %s:\n got %v\nwant %v", expr, s.Location(), from, to, got, want)
		return
	}
	for i, at := range want {
		if len(want) > 40 && i%8 != 0 {
			continue // enough of them
		}
		beyond := to
		if i+1 < len(want) {
			beyond = want[i+1].Add(-1)
		}
		middle := at.Add(beyond.Sub(at) / 2)
		for _, moment := range []time.Time{at, middle, beyond} {
			if prev := s.Prev(moment); !prev.Equal(at) {
				t.Errorf("%q in %s: Prev(%s) = %s, want %s", expr, s.Location(), moment, prev, at)
			}
		}
	}
}

// shiftsOf returns the moments of a year at which the clocks of a zone shift, and the ends of February for company.
func shiftsOf(loc *time.Location, year int) []time.Time {
	moments := []time.Time{time.Date(year, 2, 28, 12, 0, 0, 0, loc)}
	_, last := time.Date(year, 1, 1, 0, 0, 0, 0, loc).Zone()
	for at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() == year; at = at.Add(time.Hour) {
		if _, offset := at.In(loc).Zone(); offset != last {
			moments, last = append(moments, at), offset // or up to an hour before
		}
	}
	return moments
}

func TestGap(t *testing.T) {
	t.Parallel()
	const oneDay = 24 * time.Hour
	for expr, want := range map[string]time.Duration{
		"* * * * *": time.Minute, "* 3 * * 1": time.Minute, "0 * * * *": time.Hour, "0,50 3 * * *": 50 * time.Minute,
		"*/7 * * * *":  4 * time.Minute, // 56 to 0
		"0 0,23 * * *": time.Hour,       // over midnight
		"0 0,23 * * 1": 23 * time.Hour, "15 1,13 29,30 11 *": 12 * time.Hour,
		"30 3 * * *": oneDay, "59 23 * * *": oneDay, "0 6 * * 1-5": oneDay, "0 0 1,31 * *": oneDay, "@weekly": 7 * oneDay,
		"0 12 13 * 5": oneDay,                                                                                    // a Friday, the 14th
		"@monthly":    28 * oneDay, "0 0 1 1,2 *": 31 * oneDay, "0 0 L * *": 28 * oneDay, "0 0 28,L * *": oneDay, // in a leap year
		"@yearly": 365 * oneDay, "0 0 28 2 *": 365 * oneDay, "0 22 31 12 *": 365 * oneDay, "0 0 29 2 *": (4*365 + 1) * oneDay,
	} {
		if got := wallclock.MustParse(expr, "Europe/Berlin").Gap(); got != want {
			t.Errorf("Gap of %q is %v, want %v", expr, got, want)
		}
	}
}

// "Lacking returns the months of the expression in which one of its days of month does not exist."
func TestLacking(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		"0 0 31 * *": "Feb Apr Jun Sep Nov", "0 0 28-31 * *": "Feb Apr Jun Sep Nov", "0 0 15,30 * *": "Feb", "0 0 29 2 *": "Feb", "0 0 31 1,4 *": "Apr",
		"0 0 L * *": "", "0 0 15,L * *": "", "0 0 31,L * *": "Feb Apr Jun Sep Nov", "0 0 28 * *": "", "0 0 1-31 * *": "", "0 0 */2 * *": "", "0 0 31 * 1": "",
		"0 0 * * *": "", "@monthly": "", "0 0 31 1,3 *": "",
	} {
		var got []string
		for _, m := range wallclock.MustParse(expr, "").Lacking() {
			got = append(got, m.String()[:3])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q lacks days in %q, want %q", expr, got, want)
		}
	}
}
