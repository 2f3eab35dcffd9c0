package wallclock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/wallclock"
)

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ expr, zone, want string }{
		"nothing":             {"", "", `cron "": is empty; write five fields, such as "0 6 * * 1-5", or @daily`},
		"a zone of its own":   {"CRON_TZ=Asia/Tokyo 0 6 * * *", "", "remove CRON_TZ=Asia/Tokyo"},
		"@every":              {"@every 5m", "", `write fields, such as "*/15 * * * *"`},
		"@reboot":             {"@reboot", "", "no such word; write @yearly,"},
		"seconds":             {"0 0 6 * * *", "", "has 6 fields, and seconds are not read"},
		"few fields":          {"0 6", "", "has 2 of 5 fields: minute, hour, day of month, month, day of week"},
		"a large minute":      {"60 * * * *", "", `minute "60" is not within 0 to 59`},
		"day zero":            {"0 0 0 * *", "", `day of month "0" is not within 1 to 31`},
		"Sunday as 7":         {"0 0 * * 7", "", `day of week "7" is above 6; write 0 or sun for Sunday`},
		"a wrong word":        {"0 0 * * monday", "", `day of week "monday" is not of numbers and words; write 0 to 6, or sun to sat`},
		"a word for a minute": {"now * * * *", "", `minute "now" is not of numbers; write 0 to 59`},
		"an empty part":       {"1,,2 * * * *", "", `minute "" is not of numbers`},
		"a sign":              {"+5 * * * *", "", `minute "+5" is not of numbers`},
		"a range backwards":   {"0 22-6 * * *", "", `hour "22-6" ends before it begins; write two parts`},
		"a star and more":     {"*-5 * * * *", "", "goes on after the star"},
		"no step":             {"*/ * * * *", "", "has no step"},
		"step zero":           {"*/0 * * * *", "", "has no step of at least 1"},
		"a step out of it":    {"*/90 * * * *", "", "steps out of the field"},
		"a huge number":       {"99999999999999999999 * * * *", "", "is not of numbers"},
		"before the last day": {"0 0 L-3 * *", "", `day of month "L-3" is not of numbers; write 1 to 31, or L for the last day of the month`},
		"a last hour":         {"0 L * * *", "", `hour "L" is not of numbers; write 0 to 23`},
		"a day that is none":  {"0 0 30 2 *", "", "no month that it names has such a day"},
		"an unknown zone":     {"@daily", "Europe/Atlantis", `time zone "Europe/Atlantis" is unknown; write a name of the IANA list`},
		"a path":              {"@daily", "../UTC", "is unknown"},
		"the machine's zone":  {"@daily", "Local", "differs from one machine to the next"},
	} {
		_, err := wallclock.Parse(c.expr, c.zone)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line with %q", name, err, c.want)
		}
	}
}

// FuzzParseCron finds expressions that are taken and cannot be used. It begins with some that must be taken.
func FuzzParseCron(f *testing.F) {
	for _, expr := range []string{
		" 0 6 * * 1-5 ", "0\t6 * * *", "? ? ? ? ?", "5/15 * * * *", "*/59 * * * *", "0 0 * jan-DEC sun-sat",
		"0 0 29 2 *", "0 0 30 2 1", "00 06 01 01 *", "1,1,1 * * * *", "0 0 31 2,3 *", "0 0 L * *", "0 0 1,15,L 2-4 fri",
		"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly",
	} {
		if s := wallclock.MustParse(expr, ""); s.Location() != time.UTC {
			f.Errorf("%q without a zone is in %v", expr, s.Location())
		}
		f.Add(expr, "Europe/Berlin")
	}
	f.Add("TZ=", "Europe/Berlin")
	f.Add("1-2/3,4 ? jan * sun", "Europe/Berlin")
	f.Fuzz(func(t *testing.T, expr, zone string) {
		s, err := wallclock.Parse(expr, zone)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 1000 {
				t.Errorf("an error of more than a line: %v", err)
			}
			return
		}
		from := time.Date(2026, 11, 22, 11, 50, 0, 0, time.UTC)
		next := s.Next(from)
		if !next.After(from) || next.Location() != s.Location() || !s.Prev(next).Equal(next) {
			t.Errorf("%q in %q: Next(%s) = %s, Prev of that is %s", expr, zone, from, next, s.Prev(next))
		}
		if gap := s.Gap(); gap < time.Minute || gap%time.Minute != 0 {
			t.Errorf("%q: Gap() = %v", expr, gap)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
