package queue

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/headway-go/headway/throttle/policy"
)

// The bounds of a task's fields.
const (
	MaxCost     = 1_000_000_000_000
	MaxRetries  = 1_000_000
	MaxPriority = 1_000_000 // in either direction

	maxName  = 256 // bytes of an id or a type
	maxQueue = 128 // bytes of a queue name
)

// Validate returns nil, or an *InvalidError with every fault of the task. It does no I/O. It does not
// check whether a policy has a rule for the scope and can ever admit the cost, which the Client does,
// nor whether workers send the method: see CheckMethod.
func (t Task) Validate() error { return t.validate(time.Now(), nil).err() }

// validate adds to the faults found while reading.
func (t Task) validate(now time.Time, found faults) faults {
	check := func(field string, f func(add func(format string, args ...any))) {
		if !found.has(field) {
			f(func(format string, args ...any) { found.add(field, format, args...) })
		}
	}
	check("type", func(add adder) { checkType(t.Type, add) })
	if !found.has("scope") {
		found = append(found, checkScope(t.Scope)...)
	}
	check("id", func(add adder) { checkID(t.ID, add) })
	check("cost", func(add adder) { checkCost(t.Type, t.Cost, t.Costs, add) })
	check("queue", func(add adder) { checkQueue(t.Queue, add) })
	check("max_retry", func(add adder) {
		if t.MaxRetry != nil {
			checkRange(int64(*t.MaxRetry), 0, MaxRetries, add)
		}
	})
	check("priority", func(add adder) { checkRange(int64(t.Priority), -MaxPriority, MaxPriority, add) })
	check("delay", func(add adder) { checkDuration(t.Delay, add) })
	check("timeout", func(add adder) { checkDuration(t.Timeout, add) })
	check("remember", func(add adder) { checkDuration(t.Remember, add) })
	check("max_wait", func(add adder) { checkDuration(t.MaxWait, add) })
	check("deadline", func(add adder) { checkDeadline(t.Deadline, t.Delay, now, add) })
	if t.Type == TypeHTTP {
		check("payload", func(add adder) { checkNoPayload(t.Payload, add) })
		check("http", func(add adder) { checkHasHTTP(t.HTTP, add) })
		return t.HTTP.validate(found)
	}
	check("payload", func(add adder) { checkPayload(t.Payload, add) })
	check("http", func(add adder) { checkNoHTTP(t.HTTP, add) })
	return found
}

// adder adds a fault of the field that is being checked.
type adder = func(format string, args ...any)

func checkType(text string, add adder) {
	if strings.TrimSpace(text) == "" {
		add("required; %q for an outbound request, or a type that a Go program has registered", TypeHTTP)
		return
	}
	checkText(text, add)
}

func checkID(id string, add adder) {
	switch {
	case id == "": // a random one
	case strings.TrimSpace(id) == "":
		add("only spaces; leave it out for a random id")
	default:
		checkText(id, add)
	}
}

// checkText accepts a valid name: short, printable, and valid in asynq's protobuf message.
func checkText(text string, add adder) {
	switch {
	case len(text) > maxName:
		add("%d bytes long; %d at most", len(text), maxName)
	case !utf8.ValidString(text):
		add("not valid UTF-8")
	case strings.ContainsFunc(text, unicode.IsControl):
		add("%q holds a control character", clip(text))
	}
}

func checkScope(text string) faults {
	if text == "" {
		return faults{{Field: "scope", Reason: "required; the path it spends from, such as payments/acme"}}
	}
	_, err := policy.ParseScope(text)
	if err == nil {
		return nil
	}
	return faults{scopeFault(err)}
}

// scopeFault reports throttle's refusal of a scope under the field's own name.
func scopeFault(err error) Fault {
	return Fault{Field: "scope", Reason: strings.TrimPrefix(err.Error(), "throttle: scope "), Err: err}
}

func costFault(err *policy.CostError) Fault {
	if err.Unit != "" && err.Unit != policy.Requests {
		return Fault{Field: "cost", Err: err, Reason: fmt.Sprintf(
			"costs %d %s, and the most that rule %q can ever admit is %d; split the task, or raise the rule's burst or limit",
			err.Cost, err.Unit, err.Rule, err.Capacity)}
	}
	return Fault{Field: "cost", Err: err, Reason: fmt.Sprintf(
		"%d can never pass: rule %q admits %d at most; split the task, or raise the rule's burst or limit",
		err.Cost, err.Rule, err.Capacity)}
}

func checkRange(n, low, high int64, add adder) {
	switch {
	case n < low:
		add("%d is below %d", n, low)
	case n > high:
		add("%d is above %d", n, high)
	}
}

func checkCost(kind string, cost int64, costs policy.Costs, add adder) {
	switch {
	case cost != 0 && len(costs) > 0:
		add("%d, and costs by unit as well; write one of the two", cost)
	case cost != 0:
		checkRange(cost, 1, MaxCost, add)
	case costs != nil:
		if err := costs.Check(); err != nil {
			add("%s", strings.TrimPrefix(err.Error(), "throttle: costs: "))
		} else if sendsUncounted(kind, costs) {
			add("%s", sendsARequest)
		}
	}
}

func checkQueue(name string, add adder) {
	switch {
	case len(name) > maxQueue:
		add("%d bytes long; %d at most", len(name), maxQueue)
	case strings.ContainsFunc(name, func(r rune) bool { return !queueRune(r) }):
		add("%q; a queue name is letters, digits, _, - and .", clip(name))
	}
}

func queueRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.", r)
}

func checkDeadline(deadline time.Time, delay time.Duration, now time.Time, add adder) {
	switch {
	case deadline.IsZero():
	case !deadline.After(now):
		add("%s has passed", deadline.Format(time.RFC3339))
	case deadline.Sub(now) > maxDuration:
		add("%s is more than ten years away", deadline.Format(time.RFC3339))
	case !deadline.After(now.Add(delay)):
		add("%s comes before the delay of %v has passed", deadline.Format(time.RFC3339), delay)
	}
}

func checkPayload(payload []byte, add adder) {
	if payload != nil && !jsontext.Value(payload).IsValid(jsontext.AllowDuplicateNames(true)) {
		add("not one JSON value, in UTF-8")
	}
}

func checkNoPayload(payload []byte, add adder) {
	if payload != nil {
		add("a task of type %q has none; its request stands in http", TypeHTTP)
	}
}

func checkHasHTTP(request *HTTP, add adder) {
	if request == nil {
		add("required by type %q, with at least a url", TypeHTTP)
	}
}

func checkNoHTTP(request *HTTP, add adder) {
	if request != nil {
		add("only a task of type %q has it; others carry a payload", TypeHTTP)
	}
}
