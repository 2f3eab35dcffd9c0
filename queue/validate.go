package queue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle/policy"
)

// The bounds of a task's fields.
const (
	MaxCost     = 1_000_000_000_000
	MaxRetries  = 1_000_000
	MaxPriority = 1_000_000 // in either direction

	maxName  = 256 // bytes of an id or a type
	maxQueue = 128 // bytes of a queue name

	minDuration = time.Microsecond
	maxDuration = 10 * 365 * 24 * time.Hour
)

// Validate returns nil, or an *InvalidError with every fault of the task. It does no I/O. It does not check whether a policy has
// a rule for the scope and can ever admit the cost, which the Client does, nor whether workers send the method: see CheckMethod.
func (t Task) Validate() error { return t.validate(time.Now(), nil).err() }

// validate adds to the faults found while reading.
func (t Task) validate(now time.Time, found faults) faults {
	check := func(field, reason string) {
		if reason != "" && !found.has(field) {
			found.add(field, "%s", reason)
		}
	}
	check("type", typeFault(t.Type))
	if t.Scope == "" {
		check("scope", "required; the path it spends from, such as payments/acme")
	} else if _, err := policy.ParseScope(t.Scope); err != nil && !found.has("scope") {
		found = append(found, scopeFault(err))
	}
	check("id", idFault(t.ID))
	check("cost", costsFault(t.Type, t.Cost, t.Costs))
	check("queue", queueFault(t.Queue))
	if t.MaxRetry != nil {
		check("max_retry", rangeFault(int64(*t.MaxRetry), 0, MaxRetries))
	}
	check("priority", rangeFault(int64(t.Priority), -MaxPriority, MaxPriority))
	check("delay", durationFault(t.Delay, t.Delay.String()))
	check("timeout", durationFault(t.Timeout, t.Timeout.String()))
	check("remember", durationFault(t.Remember, t.Remember.String()))
	check("max_wait", durationFault(t.MaxWait, t.MaxWait.String()))
	check("deadline", deadlineFault(t.Deadline, t.Delay, now))
	if t.Type == TypeHTTP {
		if t.Payload != nil {
			check("payload", `a task of type "http" has none; its request is in http`)
		}
		if t.HTTP == nil {
			check("http", `required by type "http", with at least a url`)
		}
		return t.HTTP.validate(found)
	}
	if t.Payload != nil && !jsontext.Value(t.Payload).IsValid(jsontext.AllowDuplicateNames(true)) {
		check("payload", "not one JSON value, in UTF-8")
	}
	if t.HTTP != nil {
		check("http", `only a task of type "http" has it; others carry a payload`)
	}
	return found
}

func typeFault(text string) string {
	if strings.TrimSpace(text) == "" {
		return fmt.Sprintf("required; %q for an outbound request, or a type that a Go program has registered", TypeHTTP)
	}
	return nameFault(text)
}

func idFault(id string) string {
	if id != "" && strings.TrimSpace(id) == "" {
		return "only spaces; leave it out for a random id"
	}
	return nameFault(id)
}

// nameFault accepts a valid name: short, printable, and valid in asynq's protobuf message.
func nameFault(text string) string {
	switch {
	case len(text) > maxName:
		return fmt.Sprintf("%d bytes long; %d at most", len(text), maxName)
	case !utf8.ValidString(text):
		return "not valid UTF-8"
	case strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Sprintf("%q holds a control character", diag.Clip(text))
	}
	return ""
}

// scopeFault reports throttle's refusal of a scope under the field's own name.
func scopeFault(err error) Fault {
	return Fault{Field: "scope", Reason: strings.TrimPrefix(err.Error(), "throttle: scope "), Err: err}
}

func costFault(err *policy.CostError) Fault {
	reason := fmt.Sprintf("%d can never pass: rule %q admits %d at most", err.Cost, err.Rule, err.Capacity)
	if err.Unit != "" && err.Unit != policy.Requests {
		reason = fmt.Sprintf("costs %s, and the most that rule %q can ever admit is %s", policy.Amount(err.Cost, err.Unit), err.Rule, policy.Number(err.Capacity, err.Unit))
	}
	return Fault{Field: "cost", Err: err, Reason: reason + "; split the task, or raise the rule's burst or limit"}
}

func rangeFault(n, low, high int64) string {
	switch {
	case n < low:
		return fmt.Sprintf("%d is below %d", n, low)
	case n > high:
		return fmt.Sprintf("%d is above %d", n, high)
	}
	return ""
}

func costsFault(kind string, cost int64, costs policy.Costs) string {
	switch {
	case cost != 0 && len(costs) > 0:
		return fmt.Sprintf("%d, and costs by unit as well; write one of the two", cost)
	case cost != 0:
		return rangeFault(cost, 1, MaxCost)
	case costs == nil:
		return ""
	}
	if err := costs.Check(); err != nil {
		return strings.TrimPrefix(err.Error(), "throttle: costs: ")
	}
	if sendsUncounted(kind, costs) {
		return sendsARequest
	}
	return ""
}

func queueFault(name string) string {
	const runes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
	switch {
	case len(name) > maxQueue:
		return fmt.Sprintf("%d bytes long; %d at most", len(name), maxQueue)
	case strings.Trim(name, runes) != "":
		return fmt.Sprintf("%q; a queue name is letters, digits, _, - and .", diag.Clip(name))
	}
	return ""
}

// ParseDuration parses a duration as lines and flags have it: a Go duration ("500ms", "1h30m") or
// whole days ("30d"). Accepted values are 0, and 1 microsecond to ten years.
func ParseDuration(text string) (time.Duration, error) {
	d, ok := duration.Parse(text)
	fault := durationFault(d, strconv.Quote(diag.Clip(text)))
	switch {
	case !ok:
		fault = fmt.Sprintf("%q is no duration, such as 500ms, 90s, 24h or 30d", diag.Clip(text))
	case d == 0 && strings.ContainsAny(text, "123456789"): // less than a nanosecond
		fault = durationFault(1, strconv.Quote(diag.Clip(text)))
	}
	if fault != "" {
		return 0, errors.New(fault)
	}
	return d, nil
}

// durationFault refuses what ParseDuration refuses. text is the duration as it was written.
func durationFault(d time.Duration, text string) string {
	switch {
	case d < 0:
		return text + " is negative"
	case 0 < d && d < minDuration:
		return text + " is below a microsecond"
	case d > maxDuration:
		return text + " is above ten years (3650d)"
	}
	return ""
}

func deadlineFault(deadline time.Time, delay time.Duration, now time.Time) string {
	text := deadline.Format(time.RFC3339)
	switch {
	case deadline.IsZero():
	case !deadline.After(now):
		return text + " has passed"
	case deadline.Sub(now) > maxDuration:
		return text + " is more than ten years away"
	case !deadline.After(now.Add(delay)):
		return fmt.Sprintf("%s comes before the delay of %v has passed", text, delay)
	}
	return ""
}
