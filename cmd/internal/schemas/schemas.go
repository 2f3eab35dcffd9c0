// Package schemas has the JSON Schemas of limits.yaml and schedules.yaml, by which editors
// complete and check the files while they are written. The programs read the files by code
// of their own, which finds more: test/bench/schemas holds the schemas against it.
//
// They are of draft 7, which the YAML servers of editors know.
package schemas

import (
	"bytes"
	"encoding/json"
)

// object is a JSON object.
type object = map[string]any

// Names are what For takes.
var Names = []string{"limits", "schedules"}

// For returns the schema of limits.yaml or of schedules.yaml, indented. It panics for another
// name than those of Names.
func For(name string) []byte {
	var schema object
	switch name {
	case "limits":
		schema = limits()
	case "schedules":
		schema = schedules()
	default:
		panic("schemas: none for " + name)
	}
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		panic(err) // strings, numbers and lists only
	}
	return text.Bytes()
}

// Field is what a schema says of one field of a file.
type Field struct{ Owner, Name, Description string }

// what adds a description to a schema of a value.
func what(description string, value object) object {
	described := object{"description": description}
	for key, v := range value {
		described[key] = v
	}
	return described
}

// fields is a mapping that has these fields and no others.
func fields(properties object, required ...string) object {
	s := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// names is a mapping of names that people give.
func names(value object) object {
	return object{"type": "object", "propertyNames": name(), "additionalProperties": value}
}

// name is one that people give. That it has 128 bytes at most is more than a schema can say.
func name() object {
	return object{"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[^/\\x00-\\x1f\\x7f-\\x9f]*$"}
}

// ruleName is name without those that end in a colon, as the fields of a scope do in the history.
func ruleName() object {
	n := name()
	n["pattern"] = "^[^/\\x00-\\x1f\\x7f-\\x9f]*[^:/\\x00-\\x1f\\x7f-\\x9f]$"
	return n
}

func word(words ...string) object { return object{"enum": words} }

func whole(least, most int64) object {
	return object{"type": "integer", "minimum": least, "maximum": most}
}

func list(items object, most int) object {
	return object{"type": "array", "items": items, "minItems": 1, "maxItems": most, "uniqueItems": true}
}

func flag() object { return object{"type": "boolean"} }

// duration is as the programs read one. A schema knows no least and no most of it.
func duration() object {
	return object{"type": "string", "maxLength": 64, "pattern": "^\\+?([0-9]+d|(([0-9]+\\.?[0-9]*|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"}
}

// cron is an expression of five fields, or one of the words for it.
func cron() object {
	return object{"type": "string", "pattern": "^ *(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[^ @]+( +[^ ]+){4}) *$"}
}

// unit is the name of a unit.
func unit() object { return object{"type": "string", "maxLength": 32, "pattern": "^[a-z0-9_-]+$"} }

const maxNumber = 1_000_000_000_000
