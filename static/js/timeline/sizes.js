// Heights of the parts above the lanes, in CSS pixels.
export const MINIMAP = 22, AXIS = 24;
