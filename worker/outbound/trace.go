package outbound

import (
	"context"
	"net/http"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// TraceContext is a Config.Headers that sends the W3C trace context of a task on: its task headers
// traceparent and tracestate, as package worker/oteltask, enqueue or another program has set them at
// enqueue. The called API then belongs to the trace of the program that enqueued. A malformed context
// is not sent.
func TraceContext(_ context.Context, t *asynq.Task, header http.Header) {
	parent, state := t.Headers()[httpsyntax.Traceparent], t.Headers()[httpsyntax.Tracestate]
	if !httpsyntax.ValidTraceparent(parent) {
		return
	}
	header.Set(httpsyntax.Traceparent, parent)
	if state != "" && httpsyntax.ValidTracestate(state) {
		header.Set(httpsyntax.Tracestate, state)
	}
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
