package oteltask_test

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// printer prints the spans of one task, and those that are of no task.
type printer struct {
	spans tracetest.SpanStubs
	task  string
}

func attributeOf(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if a.Key == attribute.Key(key) {
			return a.Value.String()
		}
	}
	return ""
}

func (p printer) shows(s tracetest.SpanStub) bool {
	id := attributeOf(s, "messaging.message.id")
	return id == "" || id == p.task
}

// named returns the task's span of a name.
func (p printer) named(name string) tracetest.SpanStub {
	i := slices.IndexFunc(p.spans, func(s tracetest.SpanStub) bool { return s.Name == name && p.shows(s) })
	if i < 0 {
		return tracetest.SpanStub{Name: "no span " + name}
	}
	return p.spans[i]
}

// below prints a span and those below it.
func (p printer) below(indent string, s tracetest.SpanStub) {
	line := []string{s.Name}
	if !strings.HasPrefix(s.Name, "POST") {
		line = append(line, s.SpanKind.String())
	}
	for _, key := range []string{"headway.scope", "headway.rule", "headway.outcome"} {
		if value := attributeOf(s, key); value != "" {
			line = append(line, key+"="+value)
		}
	}
	if attributeOf(s, "headway.wait.expected_start") != "" {
		line = append(line, "with the expected start")
	}
	for _, event := range s.Events {
		line = append(line, event.Name)
	}
	fmt.Println(indent + strings.Join(line, ", ")) //nolint:forbidigo // an example's output
	for _, one := range p.spans {
		if one.Parent.SpanID() == s.SpanContext.SpanID() && p.shows(one) {
			p.below(indent+"  ", one)
		}
	}
}

// linked prints the spans of a name that are linked to another.
func (p printer) linked(name string, to tracetest.SpanStub) {
	for _, s := range p.spans {
		if s.Name != name {
			continue
		}
		for _, link := range s.Links {
			if link.SpanContext.SpanID() == to.SpanContext.SpanID() {
				fmt.Println("linked to it:") //nolint:forbidigo // an example's output
				p.below("", s)
			}
		}
	}
}
