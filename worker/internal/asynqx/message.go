package asynqx

import (
	"bytes"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// asynq keeps the last error of a task in its message, and writes it unchanged when the task has
// succeeded: a task that has waited would look as if it had failed with Headway's text. No handler can
// change that, so the client does, in the one script that writes a completed task.

// The fields of asynq's message (asynq v0.25 and v0.26, internal/proto/asynq.proto).
const (
	fieldID           protowire.Number = 3
	fieldErrorMsg     protowire.Number = 7
	fieldLastFailedAt protowire.Number = 11
	fieldHeaders      protowire.Number = 15

	mapKey   protowire.Number = 1 // of an entry of the headers
	mapValue protowire.Number = 2
)

// messageArg is the index of the message among the arguments of the script that completes a task.
const messageArg = 3

// withoutOurText returns the arguments of a script. For one that completes a task, it removes from the
// message what Headway's put-backs left there. The caller's arguments are not changed.
func withoutOurText(keys []string, args []any) []any {
	if len(keys) < 3 || !strings.HasPrefix(keys[2], "asynq:{") || !strings.HasSuffix(keys[2], "}:completed") || len(args) <= messageArg {
		return args
	}
	message, _ := args[messageArg].([]byte)
	if !bytes.Contains(message, []byte(WaitingText)) {
		return args
	}
	clean, ok := cleanMessage(message)
	if !ok {
		return args
	}
	out := append([]any(nil), args...)
	out[messageArg] = clean
	return out
}

// cleanMessage copies a message, without the text of a task that waits and its time. A real failure
// keeps both. It returns false if message is not asynq's.
func cleanMessage(message []byte) (clean []byte, ok bool) {
	if !IsWaiting(field(message, fieldErrorMsg)) {
		return message, true
	}
	for rest := message; len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, false
		}
		field := rest[:n]
		rest = rest[n:]
		if number != fieldErrorMsg && number != fieldLastFailedAt {
			clean = append(clean, field...)
		}
	}
	return clean, true
}

// messageID returns the id of the task in a message.
func messageID(message string) string { return field([]byte(message), fieldID) }

// field returns a text field of a message, "" if it has none.
func field(message []byte, its protowire.Number) (text string) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return ""
		}
		n := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if n < 0 {
			return ""
		}
		if number == its && kind == protowire.BytesType {
			text, _ = protowire.ConsumeString(message[tag:])
		}
		message = message[tag+n:]
	}
	return text
}
