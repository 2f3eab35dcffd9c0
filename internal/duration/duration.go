// Package duration reads and writes durations in their form in files and flags: 500ms, 1m, 24h, 30d.
package duration

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

var digits = regexp.MustCompile(`[0-9]+`)

// Parse parses a Go duration or whole days (30d). It loses nothing that a check has to reject: a
// value beyond time.Duration becomes the nearest time.Duration.
func Parse(text string) (d time.Duration, ok bool) {
	nearest := time.Duration(math.MaxInt64)
	if strings.HasPrefix(text, "-") {
		nearest = math.MinInt64
	}
	if count, isDays := strings.CutSuffix(text, "d"); isDays {
		n, err := strconv.ParseInt(count, 10, 64)
		if d = time.Duration(n) * day; d/day != time.Duration(n) {
			d = nearest
		}
		return d, err == nil || errors.Is(err, strconv.ErrRange)
	}
	d, err := time.ParseDuration(text)
	if err == nil {
		return d, true
	}
	// It is too large if it is a duration with other digits.
	if _, err = time.ParseDuration(digits.ReplaceAllString(text, "1")); err != nil {
		return 0, false
	}
	return nearest, true
}

// Format returns the shortest text that Parse reads back as d: 30d, 24h, 1m30s, 250us.
func Format(d time.Duration) string {
	if d >= 2*day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return strings.Replace(text, "µs", "us", 1)
}
