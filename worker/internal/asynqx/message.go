package asynqx

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// asynq keeps the last error of a task in its message, also when the task has succeeded: a task that has waited would look as if it
// had failed with Headway's text. No handler can change that, so the client does, in the script that writes a completed task.

// The fields of asynq's message (asynq v0.25 and v0.26, internal/proto/asynq.proto).
const (
	fieldID           protowire.Number = 3
	fieldErrorMsg     protowire.Number = 7
	fieldLastFailedAt protowire.Number = 11
	// FieldHeaders is the headers of a task. Each entry has the fields MapKey and MapValue.
	FieldHeaders protowire.Number = 15
	MapKey       protowire.Number = 1
	MapValue     protowire.Number = 2
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
	out := slices.Clone(args)
	out[messageArg] = clean
	return out
}

// cleanMessage copies a message, without the text of a task that waits and its time. A real failure
// keeps both. It returns false if message is not asynq's.
func cleanMessage(message []byte) (clean []byte, ok bool) {
	if !IsWaiting(field(message, fieldErrorMsg)) {
		return message, true
	}
	ok = EachField(message, func(f Field) bool {
		if f.Number != fieldErrorMsg && f.Number != fieldLastFailedAt {
			clean = append(clean, f.raw...)
		}
		return true
	})
	return clean, ok
}

// withHeaders copies a message with some headers changed: an empty value removes a header. It returns false
// if message is not asynq's.
func withHeaders(message []byte, headers map[string]string) (changed []byte, ok bool) {
	ok = EachField(message, func(f Field) bool {
		if f.Number == FieldHeaders {
			if _, replaced := headers[field(f.Bytes, MapKey)]; replaced {
				return true
			}
		}
		changed = append(changed, f.raw...)
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if headers[name] == "" {
			continue
		}
		entry := protowire.AppendString(protowire.AppendTag(nil, MapKey, protowire.BytesType), name)
		entry = protowire.AppendString(protowire.AppendTag(entry, MapValue, protowire.BytesType), headers[name])
		changed = protowire.AppendBytes(protowire.AppendTag(changed, FieldHeaders, protowire.BytesType), entry)
	}
	return changed, ok
}

// messageID returns the id of the task in a message.
func messageID(message string) string { return field([]byte(message), fieldID) }

// field returns a text field of a message, "" if it has none.
func field(message []byte, number protowire.Number) (text string) {
	EachField(message, func(f Field) bool {
		if f.Number == number {
			text = string(f.Bytes)
		}
		return true
	})
	return text
}

// Field is a field of a protobuf message: its bytes, or its number N.
type Field struct {
	Number protowire.Number
	Bytes  []byte
	N      uint64

	raw []byte // with its tag
}

// EachField calls do for each field of a message. It returns false if do does or if the message is damaged.
func EachField(message []byte, do func(Field) bool) bool {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return false
		}
		f := Field{Number: number, raw: message[:size]}
		_, _, tag := protowire.ConsumeTag(f.raw)
		switch kind {
		case protowire.BytesType:
			f.Bytes, _ = protowire.ConsumeBytes(f.raw[tag:])
		case protowire.VarintType:
			f.N, _ = protowire.ConsumeVarint(f.raw[tag:])
		}
		if !do(f) {
			return false
		}
		message = message[size:]
	}
	return true
}
