// Photos made small enough for a slow link and sharp enough for a register's digits. In the browser only.

/** The API takes 4 MiB; what leaves a phone should be far below. */
const QUALITY = [0.82, 0.65, 0.5];
const GOOD_BYTES = 400 * 1024;

/** A JPEG whose longer side has at most `pixels`; also drops what the camera wrote into the file. */
export async function shrink(file: Blob, pixels: number): Promise<Blob> {
  const image = await createImageBitmap(file, { imageOrientation: 'from-image' });
  const scale = Math.min(1, pixels / Math.max(image.width, image.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  const context = canvas.getContext('2d');
  if (!context) throw new Error('This browser cannot resize photos.');
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  let smallest: Blob | null = null;
  for (const quality of QUALITY) {
    smallest = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, 'image/jpeg', quality));
    if (smallest && smallest.size <= GOOD_BYTES) break;
  }
  if (!smallest) throw new Error('The photo cannot be stored.');
  return smallest;
}
