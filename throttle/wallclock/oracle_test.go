package wallclock_test

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// everyMinute returns the runs of an expression after from and up to to, by
// looking at each minute. It is a second opinion: it shares no code with the
// package nor with robfig/cron, and is as slow as it is simple. It takes five
// fields, and shifts of whole minutes.
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

// minutes returns whether an expression matches a minute, counted since 1970, of a clock
// that never shifts.
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

// everyChange returns when the minutes that match begin and end, after from and up to to,
// as everyMinute does.
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
