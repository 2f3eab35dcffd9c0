package queue

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	minDuration = time.Microsecond
	maxDuration = 10 * 365 * day
	day         = 24 * time.Hour
)

// ParseDuration parses a duration as lines and flags have it: a Go duration ("500ms", "1h30m") or
// whole days ("30d"). Accepted values are 0, and 1 microsecond to ten years.
func ParseDuration(text string) (time.Duration, error) {
	d, err := parseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no duration, such as 500ms, 90s, 24h or 30d", clip(text))
	case d < 0:
		return 0, fmt.Errorf("%q is negative", clip(text))
	case d < minDuration && strings.ContainsAny(text, "123456789"):
		return 0, fmt.Errorf("%q is below a microsecond", clip(text))
	case d > maxDuration:
		return 0, fmt.Errorf("%q is above ten years (3650d)", clip(text))
	}
	return d, nil
}

// parseDuration returns more than maxDuration if a time.Duration cannot hold the value.
func parseDuration(text string) (time.Duration, error) {
	days, isDays := strings.CutSuffix(text, "d")
	if !isDays {
		d, err := time.ParseDuration(text)
		if err != nil && wouldParse(text) {
			return maxDuration + 1, nil
		}
		return d, err
	}
	n, err := strconv.ParseInt(days, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), n > int64(maxDuration/day):
		return maxDuration + 1, nil
	case err != nil:
		return 0, err
	}
	return time.Duration(max(n, -1)) * day, nil
}

var digits = regexp.MustCompile(`[0-9]+`)

// wouldParse reports whether text is a duration apart from its size.
func wouldParse(text string) bool {
	_, err := time.ParseDuration(digits.ReplaceAllString(text, "1"))
	return err == nil
}

// checkDuration refuses the values that ParseDuration refuses.
func checkDuration(d time.Duration, add adder) {
	switch {
	case d < 0:
		add("%v is negative", d)
	case d > 0 && d < minDuration:
		add("%v is below a microsecond", d)
	case d > maxDuration:
		add("%v is above ten years (%v)", d, maxDuration)
	}
}
