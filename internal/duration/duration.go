// Package duration reads and writes durations in their form in limits.yaml: 500ms, 1m, 24h, 30d.
package duration

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxText is the maximum length of a text. It is far longer than any duration within the bounds
// needs, and keeps the exact arithmetic below small.
const maxText = 64

const day = 24 * time.Hour

var (
	ofUnits   = regexp.MustCompile(`^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+$`)
	oneUnit   = regexp.MustCompile(`([0-9.]+)(ns|us|µs|μs|ms|s|m|h)`)
	days      = regexp.MustCompile(`^[+-]?[0-9]+d$`)
	unitNanos = map[string]time.Duration{
		"ns": time.Nanosecond, "us": time.Microsecond, "µs": time.Microsecond, "μs": time.Microsecond,
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
	}
)

// Parse parses a Go duration or whole days (30d). It loses nothing that a check has to reject: a
// value beyond time.Duration becomes the nearest time.Duration. A part of a nanosecond, which
// time.ParseDuration drops, becomes a whole one if the result would otherwise be in whole
// microseconds.
func Parse(text string) (d time.Duration, ok bool) {
	if len(text) > maxText {
		return 0, false
	}
	nanos := new(big.Rat)
	switch {
	case days.MatchString(text):
		nanos.SetString(strings.TrimLeft(strings.TrimSuffix(text, "d"), "+-"))
		nanos.Mul(nanos, ratio(day))
	case ofUnits.MatchString(text):
		for _, part := range oneUnit.FindAllStringSubmatch(text, -1) {
			count, _ := new(big.Rat).SetString(part[1])
			nanos.Add(nanos, count.Mul(count, ratio(unitNanos[part[2]])))
		}
	default:
		return 0, false
	}
	if text[0] == '-' {
		nanos.Neg(nanos)
	}
	d = round(nanos)
	if !nanos.IsInt() && d%time.Microsecond == 0 {
		d++
	}
	return d, true
}

// round rounds towards zero, and limits the result to the range of time.Duration.
func round(nanos *big.Rat) time.Duration {
	whole := new(big.Int).Quo(nanos.Num(), nanos.Denom())
	switch {
	case whole.IsInt64():
		return time.Duration(whole.Int64())
	case whole.Sign() < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

func ratio(d time.Duration) *big.Rat { return new(big.Rat).SetInt64(int64(d)) }

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
