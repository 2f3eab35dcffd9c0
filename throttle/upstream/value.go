package upstream

import (
	"cmp"
	"net/http"
	"strings"
	"time"
)

const (
	maxNumber = 1<<53 - 1 // what a double holds exactly, as most APIs' own numbers are
	maxSpan   = 366 * day // no window or reset that makes sense is longer

	// A number of seconds from epochFrom on and below epochTo is a moment (2001 to 2286). A thousand times that is one in
	// milliseconds.
	epochFrom = 1e9
	epochTo   = 1e10
)

// decimal reads ASCII digits with at most one fraction: the whole part, which stops at maxNumber+1, and the fraction in
// billionths, rounded up.
func decimal(s string) (whole, billionths int64, ok bool) {
	digits, fraction, dot := strings.Cut(s, ".")
	if !isDigits(digits) || dot && !isDigits(fraction) {
		return 0, 0, false
	}
	for i := range len(digits) {
		whole = min(whole*10+int64(digits[i]-'0'), maxNumber+1)
	}
	for i := range 9 {
		billionths *= 10
		if i < len(fraction) {
			billionths += int64(fraction[i] - '0')
		}
	}
	if len(fraction) > 9 && strings.Trim(fraction[9:], "0") != "" {
		billionths++
	}
	return whole, billionths, true
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// count reads a number of units, dropping its fraction.
func count(s string) (n int64, ok bool) {
	n, _, ok = decimal(s)
	return n, ok && n <= maxNumber
}

// span returns a decimal number of units of time, rounded up to the nanosecond and held within limit.
func span(whole, billionths int64, unit, limit time.Duration) time.Duration {
	if whole > int64(limit/unit) {
		return limit
	}
	var part time.Duration
	if unit >= time.Second {
		part = time.Duration(billionths) * (unit / time.Second)
	} else {
		part = (time.Duration(billionths)*unit + time.Second - 1) / time.Second
	}
	return min(time.Duration(whole)*unit+part, limit)
}

// window reads the length of a window in seconds or milliseconds, 0 for one that makes no sense.
func window(s string, unit time.Duration) time.Duration {
	whole, billionths, ok := decimal(s)
	if !ok || whole > int64(maxSpan/unit) {
		return 0
	}
	return span(whole, billionths, unit, maxSpan)
}

// duration reads numbers with their units, such as 6m0s, 7.66s and 1d2h. One that is longer than maxSpan becomes a little more
// than that.
func duration(s string) (time.Duration, bool) {
	const long = maxSpan + 1
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "0", s
	}
	whole, billionths, ok := decimal(days)
	d := span(whole, billionths, day, long)
	if !ok || rest == "" {
		return d, ok && found
	}
	more, err := time.ParseDuration(rest)
	return min(d+min(more, long), long), err == nil && isDigits(rest[:1])
}

// date reads a date of HTTP in its three forms, or one of RFC 3339.
func date(s string) (time.Time, bool) {
	at, err := http.ParseTime(s)
	if err != nil {
		at, err = time.Parse(time.RFC3339, s)
	}
	return at, err == nil
}

// A clock turns moments into waits: it is the time that it was where the answer was written.
type clock struct {
	now  time.Time
	unit time.Duration // of resets that are plain numbers
}

// clock takes the answer's Date, if it is of a time in which a server with a clock can live.
func (r Reader) clock(header http.Header, now time.Time) clock {
	c := clock{now, cmp.Or(r.ResetUnit, time.Second)}
	if at, err := http.ParseTime(header.Get("Date")); err == nil && epochFrom <= at.Unix() && at.Unix() < epochTo {
		c.now = at
	}
	return c
}

// until returns how long it is until at, 0 for what has gone by.
func (c clock) until(at time.Time) time.Duration { return max(at.Sub(c.now), 0) }

// reset reads when a quota is whole again: a duration with units, a date, or a number whose size shows what it is: a wait up to
// MaxWait, seconds since 1970, or milliseconds since 1970. What is more than a year ahead is not understood.
func (c clock) reset(s string) (wait time.Duration, ok bool) {
	if whole, billionths, isNumber := decimal(s); isNumber {
		wait, ok = c.number(whole, billionths, c.unit)
	} else if at, isDate := date(s); isDate {
		wait, ok = c.until(at), true
	} else {
		wait, ok = duration(s)
	}
	return min(wait, MaxWait), ok && wait <= maxSpan
}

func (c clock) number(whole, billionths int64, unit time.Duration) (time.Duration, bool) {
	switch {
	case whole <= int64(MaxWait/unit) && whole < epochFrom:
		return span(whole, billionths, unit, MaxWait), true
	case epochFrom <= whole && whole < epochTo:
		return c.until(time.Unix(whole, billionths)), true
	case epochFrom*1000 <= whole && whole < epochTo*1000:
		return c.until(time.UnixMilli(whole).Add(span(0, billionths, time.Millisecond, day))), true
	}
	return 0, false
}

// retry reads when to come back, if that makes sense, and whether any field asks to. The more exact forms in milliseconds go
// first; of several values of one field the longest counts.
func (c clock) retry(fields []field) (wait time.Duration, known, asked bool) {
	for _, form := range []struct {
		name string
		unit time.Duration
	}{
		{"retry-after-ms", time.Millisecond},
		{"x-ms-retry-after-ms", time.Millisecond},
		{"retry-after", time.Second},
	} {
		for _, value := range fieldOf(fields, form.name).trimmed() {
			w, sensible, is := c.retryAfter(value, form.unit)
			asked = asked || is
			if sensible {
				wait, known = max(wait, w), true
			}
		}
		if known {
			break
		}
	}
	return min(wait, MaxWait), known, asked
}

// retryAfter reads a number of units, a moment since 1970 or a date. is says that it is one of these, and sensible that it is no
// longer than MaxWait, or a moment at most a year ahead: 2^63-1 is no wait.
func (c clock) retryAfter(s string, unit time.Duration) (wait time.Duration, sensible, is bool) {
	if at, isDate := date(s); isDate && unit == time.Second {
		wait = c.until(at)
		return wait, wait <= maxSpan, true
	}
	digits, negative := strings.CutPrefix(s, "-")
	whole, billionths, is := decimal(digits)
	switch {
	case !is || negative:
		return 0, is, is
	case whole <= int64(MaxWait/unit):
		return span(whole, billionths, unit, MaxWait), true, true
	}
	wait, sensible = c.number(whole, billionths, time.Second)
	return wait, sensible && wait <= maxSpan, true
}
