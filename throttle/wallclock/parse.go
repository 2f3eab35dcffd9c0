package wallclock

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // so that zones are known where the system has none

	"github.com/robfig/cron/v3"

	"github.com/headway-go/headway/internal/diag"
)

// Parse parses a cron expression: five fields (minute, hour, day of month, month, day of week) or one of @yearly, @annually,
// @monthly, @weekly, @daily, @midnight and @hourly. L as a day of month is the last day of the month. If both the day of month
// and the day of week are given, a day that matches either is a match, as in cron. zone is as [Zone] takes it. An expression that
// is never due, such as one for 30 February, is refused. The error is an *Error. Recent schedules are cached.
func Parse(expr, zone string) (*Schedule, error) {
	recent.mu.Lock()
	defer recent.mu.Unlock()
	key := [2]string{expr, zone}
	if s := recent.schedules[key]; s != nil {
		return s, nil
	}
	s, err := parse(expr, zone)
	if err != nil {
		return nil, err
	}
	if recent.schedules == nil || len(recent.schedules) == maxRecent {
		recent.schedules = map[[2]string]*Schedule{}
	}
	recent.schedules[key] = s
	return s, nil
}

const maxRecent = 1000

// recent are the schedules that were parsed lately, by expression and zone.
var recent struct {
	mu        sync.Mutex
	schedules map[[2]string]*Schedule
}

// MustParse is Parse for constant expressions: it panics where Parse returns an error.
func MustParse(expr, zone string) *Schedule { return must(Parse(expr, zone)) }

func must[T any](value T, err error) T {
	if err != nil {
		panic("wallclock: " + err.Error())
	}
	return value
}

func parse(expr, zone string) (*Schedule, error) {
	loc, err := Zone(zone)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(expr)
	if reason := exprReason(text); reason != "" {
		return nil, &Error{Expr: expr, Reason: reason}
	}
	s := &Schedule{expr: expr, zone: loc, realTime: realTime(text)}
	if s.spec, err = s.read(text); err != nil {
		return nil, &Error{Expr: expr, Reason: err.Error()}
	}
	if s.nextNaive(cycleStart).IsZero() {
		return nil, &Error{Expr: expr, Reason: "no month that it names has such a day; correct the day of month or the month"}
	}
	return s, nil
}

// read has robfig/cron read an expression without its L.
func (s *Schedule) read(text string) (*cron.SpecSchedule, error) {
	parts := strings.Fields(text)
	if len(parts) == len(fields) {
		items := strings.Split(parts[dayOfMonth], ",")
		others := slices.DeleteFunc(slices.Clone(items), func(item string) bool { return item == lastDay })
		if s.last = len(others) < len(items); s.last {
			if len(others) > 0 {
				parts[dayOfMonth] = strings.Join(others, ",")
				spec, err := standard(parts)
				if err != nil {
					return nil, err
				}
				s.days = spec.Dom
			}
			parts[dayOfMonth] = strings.Join(append(others, "28-31"), ",")
		}
	}
	return standard(parts)
}

func standard(parts []string) (*cron.SpecSchedule, error) {
	parsed, err := cron.ParseStandard(strings.Join(parts, " "))
	if err != nil {
		return nil, err
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, errors.New("is no calendar; " + writeFields)
	}
	spec.Location = time.UTC
	return spec, nil
}

// Zone returns the time zone of an IANA name, such as Europe/Berlin; "" is UTC. "Local" is refused. The error is an *Error.
func Zone(name string) (*time.Location, error) {
	const write = "write a name of the IANA list, such as UTC or America/Los_Angeles"
	if name == "Local" {
		return nil, &Error{Zone: name, Reason: `"Local" differs from one machine to the next; ` + write}
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, &Error{Zone: name, Reason: quote(name) + " is unknown; " + write}
	}
	return loc, nil
}

// Error is the error for a refused expression or zone.
type Error struct {
	Expr string // empty if the zone is at fault
	Zone string // empty if the expression is at fault
	// Reason is what is wrong and, after a semicolon, what to write: one line.
	Reason string
}

// Error returns one line, such as: cron "60 * * * *": minute "60" is not within 0 to 59.
func (e *Error) Error() string {
	if e.Zone != "" {
		return "time zone " + e.Reason
	}
	return fmt.Sprintf("cron %s: %s", quote(e.Expr), e.Reason)
}

const writeFields = `write five fields, such as "0 6 * * 1-5", or @daily`

var descriptors = []string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}

// realTime reports whether the hour field begins with a star.
func realTime(text string) bool {
	fields := strings.Fields(text)
	if len(fields) == 1 {
		return text == "@hourly"
	}
	return strings.IndexByte("*?", fields[1][0]) >= 0
}

// field is one of the five: what robfig/cron takes there.
type field struct {
	name     string
	min, max int
	words    []string // for min and the numbers after it
}

var fields = []field{
	{name: "minute", min: 0, max: 59},
	{name: "hour", min: 0, max: 23},
	{name: "day of month", min: 1, max: 31},
	{name: "month", min: 1, max: 12, words: strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec")},
	{name: "day of week", min: 0, max: 6, words: strings.Fields("sun mon tue wed thu fri sat")},
}

// dayOfMonth is the index of that field, and lastDay what it takes besides numbers.
const (
	dayOfMonth = 2
	lastDay    = "L"
)

// exprReason says what is wrong with an expression, if anything. robfig/cron overlooks empty parts of lists, signs, the end of
// "*-5", and steps that lead out of the field.
func exprReason(text string) string {
	parts := strings.Fields(text)
	switch {
	case len(parts) == 0:
		return "is empty; " + writeFields
	case strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ="):
		return "the zone has a field of its own; remove " + diag.Clip(parts[0])
	case parts[0] == "@every":
		return `@every counts from when a process started, and each started at its own time; write fields, such as "*/15 * * * *"`
	case text[0] == '@' && !slices.Contains(descriptors, text):
		return "no such word; write " + strings.Join(descriptors, ", ") + " or five fields"
	case text[0] == '@':
		return ""
	case len(parts) == len(fields)+1:
		return "has 6 fields, and seconds are not read; " + writeFields
	case len(parts) != len(fields):
		return fmt.Sprintf("has %d of 5 fields: minute, hour, day of month, month, day of week; %s", len(parts), writeFields)
	}
	for i, f := range fields {
		for item := range strings.SplitSeq(parts[i], ",") {
			if reason := f.itemReason(item); reason != "" {
				return fmt.Sprintf("%s %s %s", f.name, quote(item), reason)
			}
		}
	}
	return ""
}

// itemReason says what is wrong with one part of a list, if anything.
func (f field) itemReason(item string) string {
	if item == lastDay && f.max == 31 {
		return ""
	}
	span, step, stepped := strings.Cut(item, "/")
	low, high, ranged := strings.Cut(span, "-")
	if low == "*" || low == "?" {
		if ranged {
			return "goes on after the star; write the star alone, or a range such as " + fmt.Sprintf("%d-%d", f.min, f.max)
		}
		low = strconv.Itoa(f.min)
	}
	first, reason := f.value(low)
	if reason != "" {
		return reason
	}
	last := f.max
	if ranged {
		if last, reason = f.value(high); reason != "" {
			return reason
		}
		if last < first {
			return "ends before it begins; write two parts, divided by a comma"
		}
	}
	if !stepped {
		return ""
	}
	n, ok := digits(step)
	if !ok || n < 1 {
		return "has no step of at least 1 after the slash; write one, such as */2"
	}
	if n > last-first && n > 1 {
		return "steps out of the field: a step counts within it, from its first value on; write the values themselves"
	}
	return ""
}

// value reads a number or a word of the field.
func (f field) value(text string) (int, string) {
	if i := slices.Index(f.words, strings.ToLower(text)); i >= 0 {
		return f.min + i, ""
	}
	n, ok := digits(text)
	switch {
	case !ok && f.words != nil:
		return 0, fmt.Sprintf("is not of numbers and words; write %d to %d, or %s to %s", f.min, f.max, f.words[0], f.words[len(f.words)-1])
	case !ok:
		reason := fmt.Sprintf("is not of numbers; write %d to %d", f.min, f.max)
		if f.max == 31 {
			reason += ", or L for the last day of the month"
		}
		return 0, reason
	case n == 7 && f.max == 6:
		return 0, "is above 6; write 0 or sun for Sunday"
	case n < f.min || n > f.max:
		return 0, fmt.Sprintf("is not within %d to %d", f.min, f.max)
	}
	return n, ""
}

// digits reads a short number without a sign.
func digits(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && len(text) <= 4 && strings.Trim(text, "0123456789") == ""
}

func quote(s string) string { return strconv.Quote(diag.Clip(s)) }
