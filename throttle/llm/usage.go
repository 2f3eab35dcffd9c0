package llm

import "strconv"

// usage has the fields of all vendors' usage. Which are there says whose it is.
type usage struct {
	// OpenAI: chat completions and embeddings. completion_tokens has the reasoning, except with some servers that are alike: their total
	// has it.
	Prompt            number  `json:"prompt_tokens"`
	Completion        int64   `json:"completion_tokens"`
	PromptDetails     details `json:"prompt_tokens_details"`
	CompletionDetails details `json:"completion_tokens_details"`
	Hits              int64   `json:"prompt_cache_hit_tokens"` // DeepSeek's

	// OpenAI: responses, with a total; prompts have what is cached. Anthropic: messages, without; input_tokens is what is not.
	In         number  `json:"input_tokens"`
	Out        number  `json:"output_tokens"`
	Total      number  `json:"total_tokens"`
	InDetails  details `json:"input_tokens_details"`
	OutDetails details `json:"output_tokens_details"`
	CacheRead  int64   `json:"cache_read_input_tokens"`
	CacheWrite int64   `json:"cache_creation_input_tokens"`
	Creation   struct {
		Hour int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`

	// Gemini: a prompt has what is cached, and neither what tools return nor candidates have thoughts in them.
	GeminiPrompt number `json:"promptTokenCount"`
	Content      int64  `json:"cachedContentTokenCount"`
	Candidates   int64  `json:"candidatesTokenCount"`
	Thoughts     int64  `json:"thoughtsTokenCount"`
	ToolPrompt   int64  `json:"toolUsePromptTokenCount"`
	GeminiTotal  int64  `json:"totalTokenCount"`
}

// number is a number that may be missing. Null is missing too, and leaves what an earlier event gave.
type number struct {
	n     int64
	known bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(text []byte) (err error) {
	if string(text) != "null" {
		n.known = true
		n.n, err = strconv.ParseInt(string(text), 10, 64)
	}
	return err
}

type details struct {
	Cached    int64 `json:"cached_tokens"`
	Written   int64 `json:"cache_write_tokens"`
	Reasoning int64 `json:"reasoning_tokens"`
}

// counts are tokens of an answer. The first four are apart from each other.
type counts struct {
	input   int64 // of the prompt, neither read from a cache nor written to it
	cached  int64
	written int64
	output  int64

	hour      int64 // of written, for an hour
	limited   int64 // what the vendor's limit of input counts
	reasoning int64 // of output
	reasoned  bool  // that is known
}

// count returns what was used, false if that is not there or makes no sense.
func (u *usage) count() (n counts, known bool) {
	switch {
	case u.GeminiPrompt.known:
		in := u.GeminiPrompt.n + u.ToolPrompt
		n = ofPrompt(in, max(u.Candidates+u.Thoughts, u.GeminiTotal-in), details{Cached: u.Content, Reasoning: u.Thoughts})
	case u.Prompt.known:
		of := u.PromptDetails
		of.Cached, of.Reasoning = max(of.Cached, u.Hits), u.CompletionDetails.Reasoning
		n = ofPrompt(u.Prompt.n, max(u.Completion, u.Total.n-u.Prompt.n), of)
	case u.In.known && u.Out.known && u.Total.known:
		of := u.InDetails
		of.Reasoning = u.OutDetails.Reasoning
		n = ofPrompt(u.In.n, u.Out.n, of)
	case u.In.known && u.Out.known:
		n = counts{input: u.In.n, cached: u.CacheRead, written: u.CacheWrite, hour: u.Creation.Hour, output: u.Out.n}
		n.limited = n.input + n.written
	default:
		return counts{}, false
	}
	for _, part := range []int64{n.input, n.cached, n.written, n.output, n.hour, n.written - n.hour, n.reasoning, n.output - n.reasoning} {
		if part < 0 || part > maxTokens {
			return counts{}, false
		}
	}
	return n, true
}

// ofPrompt returns the counts of a vendor whose prompts contain what is cached.
func ofPrompt(in, out int64, of details) counts {
	return counts{
		input: in - of.Cached - of.Written, cached: of.Cached, written: of.Written, output: out, limited: in, reasoning: of.Reasoning, reasoned: true,
	}
}
