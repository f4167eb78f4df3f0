// The AI SDK's clients, driven line by line: a question in JSON comes in, what its client held goes out.
import { createInterface } from 'node:readline'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, Output, streamText, tool } from 'ai'
import { z } from 'zod'

globalThis.AI_SDK_LOG_WARNINGS = false

const url = process.argv[2]
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' })
const models = {
  compatible: createOpenAICompatible({
    name: 'forebay',
    baseURL: `${url}/v1`,
    includeUsage: true,
    supportsStructuredOutputs: true,
  }).chatModel('small'),
  chat: openai.chat('small'),
  responses: openai.responses('small'),
  anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey: 'none' })('small'),
}
const tools = {
  get_weather: tool({ description: 'Tells the weather.', inputSchema: z.object({ city: z.string() }) }),
  get_time: tool({ description: 'Tells the time.', inputSchema: z.object({ zone: z.string() }) }),
}
const calls = (made) => made.map((call) => [call.toolName, call.input])

const ways = {
  // A whole answer.
  async whole(asked) {
    const answer = await generateText({ ...asked, tools })
    return {
      text: answer.text,
      thought: answer.reasoningText ?? '',
      calls: calls(answer.toolCalls),
      reason: answer.finishReason,
      tokens: answer.usage.outputTokens,
    }
  },
  // A stream, put together by hand from its parts, and by the SDK.
  async streamed(asked) {
    const stream = streamText({ ...asked, tools })
    const told = { text: '', thought: '', inputs: {}, calls: [], reason: '', tokens: 0 }
    for await (const part of stream.fullStream) {
      if (part.type === 'error') throw part.error
      if (part.type === 'text-delta') told.text += part.text
      if (part.type === 'reasoning-delta') told.thought += part.text
      if (part.type === 'tool-input-start') told.inputs[part.id] = ''
      if (part.type === 'tool-input-delta') told.inputs[part.id] += part.delta
      if (part.type === 'tool-call') told.calls.push([part.toolName, part.input])
      if (part.type === 'finish') {
        told.reason = part.finishReason
        told.tokens = part.totalUsage.outputTokens
      }
    }
    return { ...told, together: { text: await stream.text, calls: calls(await stream.toolCalls) } }
  },
  // An object by a schema.
  async object(asked) {
    const schema = z.object({ city: z.string() })
    const answer = await generateText({ ...asked, output: Output.object({ schema }) })
    return { object: answer.output }
  },
  // A call, its result, and the answer to that.
  async steps(asked) {
    const used = await generateText({ ...asked, tools })
    const [call] = used.toolCalls
    const output = { type: 'text', value: 'Rain, 12 °C' }
    const result = { type: 'tool-result', toolCallId: call.toolCallId, toolName: call.toolName, output }
    const messages = [
      { role: 'user', content: asked.prompt },
      ...used.response.messages,
      { role: 'tool', content: [result] },
    ]
    const { prompt: _, ...rest } = asked
    await generateText({ ...rest, messages, tools })
    return {}
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { way, model, ...fields } = JSON.parse(line)
  let told
  try {
    told = await ways[way]({ prompt: 'Hi', maxRetries: 0, ...fields, model: models[model] })
  } catch (error) {
    told = { error: error.name, status: error.statusCode, message: String(error.message) }
  }
  console.log(JSON.stringify(told))
}
