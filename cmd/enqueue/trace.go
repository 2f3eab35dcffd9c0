package main

import (
	"context"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/httpsyntax"
)

// The variables in which a program gives a trace context to those that it runs:
// https://opentelemetry.io/docs/specs/otel/context/env-carriers/
const (
	parentVariable = "TRACEPARENT"
	stateVariable  = "TRACESTATE"
)

// onEnqueue returns a queue.ClientConfig.OnEnqueue that makes tasks belong to the trace of the program
// that runs this one: nil if there is none. It warns of a malformed context, which is ignored. By the
// W3C rule a state counts only with its parent, and a malformed one does not harm its parent.
func (c *command) onEnqueue() func(context.Context, queue.Task) (map[string]string, func(queue.Result)) {
	parent, state := c.getenv(parentVariable), c.getenv(stateVariable)
	switch {
	case parent == "":
		return nil
	case !httpsyntax.ValidTraceparent(parent):
		c.typed.Fail(c.stderr, c.name, cli.Errorf("unset it, or pass a context such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 on",
			"the variable %s is no W3C traceparent; tasks are enqueued without a trace", parentVariable))
		return nil
	case !httpsyntax.ValidTracestate(state):
		c.typed.Fail(c.stderr, c.name, cli.Errorf("unset it, or pass a list such as vendor=value on",
			"the variable %s is no W3C tracestate; tasks are enqueued with their %s alone", stateVariable, parentVariable))
		state = ""
	}
	headers := map[string]string{httpsyntax.Traceparent: parent}
	if state != "" {
		headers[httpsyntax.Tracestate] = state
	}
	return func(context.Context, queue.Task) (map[string]string, func(queue.Result)) { return headers, nil }
}
