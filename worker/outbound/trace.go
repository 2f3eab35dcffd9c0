package outbound

import (
	"context"
	"net/http"
	"strings"

	"github.com/hibiken/asynq"
)

// The headers of a W3C trace context, as tasks carry them.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"

	maxTracestate = 512 // as far as the specification asks for
)

// TraceContext is a Config.Headers that sends the W3C trace context of a task on: its task headers
// traceparent and tracestate, as package worker/oteltask or another program has set them at enqueue.
// The called API then belongs to the trace of the program that enqueued. A malformed context is not
// sent.
func TraceContext(_ context.Context, t *asynq.Task, header http.Header) {
	parent, state := t.Headers()[traceparent], t.Headers()[tracestate]
	if !validTraceparent(parent) {
		return
	}
	header.Set(traceparent, parent)
	if state != "" && len(state) <= maxTracestate {
		header.Set(tracestate, state)
	}
}

// validTraceparent reports whether text is a version, a trace id, a span id and flags, in lower-case
// hexadecimal. Later versions may be longer.
func validTraceparent(text string) bool {
	parts := strings.SplitN(text, "-", 5)
	if len(parts) < 4 || len(text) > 256 || parts[0] == "ff" || parts[0] == "00" && len(parts) > 4 {
		return false
	}
	for i, length := range []int{2, 32, 16, 2} {
		if len(parts[i]) != length || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(parts[1], "0") != "" && strings.Trim(parts[2], "0") != ""
}

// add adds the headers of Config.Headers. What the task itself says stays, and what may not be said by
// a task is left out.
func (c *call) add(more func(http.Header)) {
	added := http.Header{}
	more(added)
	for key, values := range added {
		key = http.CanonicalHeaderKey(key)
		_, set := c.header[key]
		if !set && key != "Host" && connectionHeaders[key] == "" && len(values) > 0 && validHeaderValue(values[0]) {
			c.header[key] = values[:1]
		}
	}
}
